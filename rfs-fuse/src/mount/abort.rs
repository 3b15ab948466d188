//! Aborts the connection between the kernel and the process that serves a mount.
//!
//! An abort fails calls that wait for a reply, and all later calls. The kernel has a file `abort`
//! for each connection, in the file system fusectl (`/sys/fs/fuse/connections`). An open file
//! stays usable when the mount has left the tree. After the end of its connection it does
//! nothing, even if a later mount has the same number.
//!
//! # Concurrency
//! The watchdog's main thread. Takes no locks.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

/// Mount point of fusectl, where it is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The open file that aborts one connection.
#[derive(Debug)]
pub(super) struct Abort(File);

impl Abort {
    /// Opens the file for the mount with this device number, `major:minor`.
    ///
    /// # Errors
    /// There is no such connection. Or fusectl is not mounted, and this user may not mount it.
    pub(super) fn of(device: &str) -> io::Result<Abort> {
        // Anonymous devices have major number 0. Their minor number names the connection.
        let minor = device.strip_prefix("0:").ok_or(io::ErrorKind::NotFound)?;
        let file = Path::new(minor).join("abort");
        let listed = File::options().write(true).open(Path::new(CONNECTIONS).join(&file));
        listed
            .or_else(|e| match e.kind() {
                io::ErrorKind::NotFound => open_unlisted(&file),
                _ => Err(e),
            })
            .map(Abort)
    }

    /// Aborts the connection.
    pub(super) fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

/// Opens a file of fusectl through a detached mount, which is not in the tree.
fn open_unlisted(file: &Path) -> io::Result<File> {
    let connections = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&connections)?;
    let root = fsmount(&connections, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(root, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
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
