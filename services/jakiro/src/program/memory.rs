//! Checks the memory that a server is to take against that of the machine.
//!
//! # Concurrency
//! One thread, at the start.

use std::error::Error;

use rdmabox::memory::{MemoryBound, available_memory};

/// Refuses more memory than is available, before the kernel kills a process for it.
pub(crate) fn check(wanted: u64) -> Result<(), Box<dyn Error>> {
    check_against(wanted, available_memory())
}

fn check_against(wanted: u64, bound: Option<MemoryBound>) -> Result<(), Box<dyn Error>> {
    match bound {
        Some(MemoryBound { bytes, what }) if wanted > bytes => Err(format!(
            "--memory {}: only {} of {what} is available; choose less",
            byte_size::show(wanted),
            byte_size::show(bytes)
        )
        .into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_is_in_the_way_is_named() {
        let bound = |bytes| Some(MemoryBound { bytes, what: "the memory limit of control group /a".into() });
        assert!(check_against(1 << 20, bound(1 << 20)).is_ok());
        let error = check_against(2 << 20, bound(1 << 20)).unwrap_err().to_string();
        assert_eq!(
            error,
            "--memory 2 MiB: only 1 MiB of the memory limit of control group /a is available; choose less"
        );
        assert!(check(1).is_ok());
        assert!(check(u64::MAX).unwrap_err().to_string().contains("choose less"));
    }
}
