//! Aborts the connection between the kernel and the process that serves a mount.
//!
//! An abort fails calls that wait for a reply, and all later calls. An open file `abort` of the
//! connection stays usable when the mount has left the tree. After the end of its connection it
//! does nothing, even if a later mount has the same number.
//!
//! # Concurrency
//! The main threads of a mount and of its watchdog. Takes no locks.

use std::{
    fs::File,
    io::{self, Write},
};

use rustix::fs::OFlags;

/// The open file that aborts one connection.
#[derive(Debug)]
pub(in crate::mount) struct Abort(File);

impl Abort {
    /// Opens the file for the mount with this device number, `major:minor`.
    ///
    /// # Errors
    /// There is no such connection. Or fusectl is not mounted, and this user may not mount it.
    pub(in crate::mount) fn of(device: &str) -> io::Result<Abort> {
        super::open(device, "abort", OFlags::WRONLY).map(Abort)
    }

    /// Aborts the connection.
    pub(in crate::mount) fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_devices_have_no_connection() {
        for device in ["8:1", "0:", "0:no", "0:4294967295"] {
            assert!(Abort::of(device).is_err(), "{device}");
        }
    }
}
