//! Checks the memory that a server is to take against that of the machine.
//!
//! # Concurrency
//! One thread, at the start.

use std::error::Error;

/// Refuses more memory than the machine has available, before the kernel kills a process for it.
pub(crate) fn check(wanted: u64) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    match available(&text) {
        Some(available) if wanted > available => Err(format!(
            "--memory {}: this machine has {} available; choose less",
            byte_size::show(wanted),
            byte_size::show(available)
        )
        .into()),
        _ => Ok(()),
    }
}

/// Returns the available bytes of `/proc/meminfo`.
fn available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_found() {
        assert_eq!(available("MemTotal:  9 kB\nMemAvailable:    1024 kB\n"), Some(1 << 20));
        assert_eq!(available("MemTotal:  9 kB\n"), None);
        assert!(check(1).is_ok());
        assert!(check(u64::MAX).unwrap_err().to_string().contains("choose less"));
    }
}
