//! Memory, threads and descriptors of the own process, from `/proc/self`.
//!
//! # Concurrency
//! Any thread. No locks.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

/// The own process. A figure that `/proc` does not tell is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Process ID.
    pub pid: u32,
    /// Effective user ID.
    pub user: u32,
    /// Time since the start of the program.
    pub uptime_seconds: f64,
    /// Processor time of all threads.
    pub cpu_seconds: f64,
    /// Resident memory, with shared memory.
    pub resident_bytes: u64,
    /// The part of the resident memory that is shared memory: lent or mapped memory.
    pub shared_bytes: u64,
    /// Number of threads.
    pub threads: u64,
    /// Number of open descriptors.
    pub descriptors: u64,
}

impl ProcessStatus {
    /// Returns the current figures of a program that runs since `start`.
    pub fn now(start: Instant) -> ProcessStatus {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
        ProcessStatus {
            pid: std::process::id(),
            user: rustix::process::geteuid().as_raw(),
            uptime_seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: cpu_time().as_secs_f64(),
            resident_bytes: field(&status, "VmRSS:") << 10,
            shared_bytes: field(&status, "RssShmem:") << 10,
            threads: field(&status, "Threads:"),
            // One of them is the directory that was just read.
            descriptors: descriptors.saturating_sub(1),
        }
    }
}

/// Returns the processor time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the number in a line of `/proc/self/status`.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a misspelt field of `/proc`, which would read as 0.
    #[test]
    fn the_figures_are_those_of_this_process() {
        let start = Instant::now();
        let ballast = vec![1_u8; 8 << 20];
        let now = ProcessStatus::now(start);
        assert_eq!(now.pid, std::process::id());
        assert!(now.resident_bytes > ballast.len() as u64, "{now:?}");
        assert!(now.threads >= 1 && now.descriptors >= 3 && now.cpu_seconds > 0.0, "{now:?}");
        assert!(now.shared_bytes < now.resident_bytes, "{now:?}");
    }

    #[test]
    fn a_missing_field_is_zero() {
        assert_eq!(field("VmRSS:\t  123 kB\n", "VmRSS:"), 123);
        assert_eq!(field("VmRSS:\t  123 kB\n", "Threads:"), 0);
    }
}
