//! What this process has taken of the system, as `/proc/self` tells it.

use std::{fs, io};

/// What a process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of memory in use.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
}

impl Usage {
    /// Of this process, now.
    pub fn now() -> io::Result<Usage> {
        Usage::of("self")
    }

    /// Of a process, by its number.
    pub fn of(process: &str) -> io::Result<Usage> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let descriptors = fs::read_dir(format!("/proc/{process}/fd"))?.count();
        let (memory, threads) = (field(&status, "VmRSS:") * 1024, field(&status, "Threads:") as usize);
        Ok(Usage { memory, descriptors, threads })
    }

    /// The most bytes of memory that a process has ever had in use at a time.
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
    fn what_is_taken_is_seen() {
        let before = Usage::now().unwrap();
        assert!(before.memory > 0 && before.descriptors > 0 && before.threads > 0);
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        let memory = vec![1u8; 32 << 20];
        let after = Usage::now().unwrap();
        // Other tests run in this process, too.
        assert!(after.descriptors >= before.descriptors + 30, "{before:?} {after:?}");
        assert!(after.memory > before.memory + (16 << 20), "{before:?} {after:?}");
        drop((files, memory));
        // The kernel counts each processor's pages for itself, and adds them up now and then.
        let peak = Usage::peak("self").unwrap();
        assert!(peak + (1 << 20) > after.memory, "{peak} {after:?}");
    }
}
