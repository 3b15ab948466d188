//! Resource usage of a process, read from `/proc`.

use std::{fs, io};

/// Resource usage of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory in bytes.
    pub memory: u64,
    /// Number of open descriptors.
    pub descriptors: usize,
    /// Number of threads.
    pub threads: usize,
}

impl Usage {
    /// Returns the usage of this process.
    pub fn now() -> io::Result<Usage> {
        Usage::of("self")
    }

    /// Returns the usage of a process, given its process ID or `self`.
    pub fn of(process: &str) -> io::Result<Usage> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let descriptors = fs::read_dir(format!("/proc/{process}/fd"))?.count();
        let (memory, threads) = (field(&status, "VmRSS:") * 1024, field(&status, "Threads:") as usize);
        Ok(Usage { memory, descriptors, threads })
    }

    /// Returns the maximum resident memory of a process so far, in bytes.
    pub fn peak(process: &str) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        Ok(field(&status, "VmHWM:") * 1024)
    }
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_descriptors_are_counted() {
        let before = Usage::now().unwrap();
        assert!(before.memory > 0 && before.descriptors > 0 && before.threads > 0);
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        let memory = vec![1u8; 32 << 20];
        let after = Usage::now().unwrap();
        // Other tests run in this process at the same time.
        assert!(after.descriptors >= before.descriptors + 30, "{before:?} {after:?}");
        assert!(after.memory > before.memory + (16 << 20), "{before:?} {after:?}");
        drop((files, memory));
        // The kernel counts pages per processor and adds the counts up later, so the peak may lag.
        let peak = Usage::peak("self").unwrap();
        assert!(peak + (1 << 20) > after.memory, "{peak} {after:?}");
    }
}
