//! Ends the connection between the kernel and whoever serves a mount: calls that wait for an answer fail, and no more come.
//!
//! The kernel has a file for that for each connection, in a file system of its own (`/sys/fs/fuse/connections`, fusectl). Who has opened it
//! can still use it when the mount is no longer in the tree, and after the end of the connection it does nothing: a later mount
//! of the same number is another one.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

/// Where that file system is mounted, if it is.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The means to end one connection.
#[derive(Debug)]
pub(super) struct Abort(File);

impl Abort {
    /// For the connection of a mount with this device number, `major:minor`.
    ///
    /// # Errors
    /// Connections are listed nowhere, and this user may not mount their file system; or there is no such connection.
    pub(super) fn of(device: &str) -> io::Result<Abort> {
        // Anonymous devices have major number 0; connections are named after the minor one.
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

    /// Ends it.
    pub(super) fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

/// Opens a file of that file system without putting it anywhere into the tree.
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
    fn what_is_no_connection_has_none() {
        for device in ["8:1", "0:", "0:no", "0:4294967295"] {
            assert!(Abort::of(device).is_err(), "{device}");
        }
    }
}
