//! The kernel's switch for FUSE over io_uring, which only root may set.
//!
//! The switch concerns the whole machine. A mount can use a ring if the switch is on at its
//! start.
//!
//! # Concurrency
//! The main thread. Takes no locks.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
};

/// Module parameter of Linux 6.14 and newer.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// FUSE over io_uring cannot be enabled.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The kernel has no such parameter.
    #[error(
        "--io-uring=on: the kernel has no {SWITCH}: FUSE over io_uring takes Linux 6.14 or newer with \
         CONFIG_FUSE_IO_URING; --io-uring=auto goes over /dev/fuse without it"
    )]
    Missing,
    /// This process cannot set it.
    #[error(
        "--io-uring=on: cannot switch on FUSE over io_uring in {SWITCH}: {0}; run as root, outside of \
         containers: echo Y >{SWITCH}"
    )]
    Refused(io::Error),
}

/// Returns true if the switch is on.
pub(super) fn is_on() -> bool {
    is_on_at(Path::new(SWITCH)).unwrap_or(false)
}

pub(super) fn set() -> Result<(), SwitchError> {
    if set_at(Path::new(SWITCH))? {
        log::info!("FUSE over io_uring was off for this machine, and is on now: {SWITCH} is Y");
    }
    Ok(())
}

fn is_on_at(switch: &Path) -> io::Result<bool> {
    Ok(fs::read_to_string(switch)?.trim() == "Y")
}

/// Sets a switch. Returns false if it was on before.
fn set_at(switch: &Path) -> Result<bool, SwitchError> {
    match is_on_at(switch) {
        Ok(true) => return Ok(false),
        Ok(false) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(SwitchError::Missing),
        Err(e) => return Err(SwitchError::Refused(e)),
    }
    let written = fs::write(switch, "Y\n").and_then(|()| is_on_at(switch));
    match written {
        Ok(true) => Ok(true),
        Ok(false) => Err(SwitchError::Refused(io::Error::other("it stays off"))),
        Err(e) => Err(SwitchError::Refused(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_is_off_is_set_once() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(&file, "N\n").expect("written");
        assert!(matches!(set_at(file.path()), Ok(true)));
        assert_eq!(fs::read_to_string(&file).expect("read"), "Y\n");
        assert!(matches!(set_at(file.path()), Ok(false)));
    }

    #[test]
    fn an_error_names_the_switch_and_the_next_step() {
        let missing = set_at(Path::new("/nowhere/switch")).expect_err("there is none").to_string();
        assert!([SWITCH, "Linux 6.14", "--io-uring=auto"].iter().all(|word| missing.contains(word)));
        // The kernel lets no process write to this file.
        let refused = set_at(Path::new("/proc/version")).expect_err("refused").to_string();
        assert!(refused.contains(&format!("as root, outside of containers: echo Y >{SWITCH}")), "{refused}");
    }
}
