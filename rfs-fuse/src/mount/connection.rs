//! Opens files of the connection between the kernel and the process that serves a mount.
//!
//! The kernel has a directory for each connection in the file system fusectl, which is usually
//! mounted on `/sys/fs/fuse/connections`. Root can open a file where fusectl is not mounted, too.
//!
//! # Concurrency
//! Any thread. No locks.

pub(super) mod abort;

use std::{fs::File, io, path::Path};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

/// Mount point of fusectl, where it is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Opens a file of the connection of the mount with this device number, `major:minor`.
///
/// # Errors
/// There is no such connection. Or fusectl is not mounted, and this user may not mount it.
pub(crate) fn open(device: &str, name: &str, flags: OFlags) -> io::Result<File> {
    // Anonymous devices have major number 0. Their minor number names the connection.
    let minor = device.strip_prefix("0:").ok_or(io::ErrorKind::NotFound)?;
    let (file, flags) = (Path::new(minor).join(name), flags | OFlags::CLOEXEC);
    match openat(CWD, Path::new(CONNECTIONS).join(&file), flags, Mode::empty()) {
        Err(e) if io::Error::from(e).kind() == io::ErrorKind::NotFound => open_unlisted(&file, flags),
        listed => Ok(listed?.into()),
    }
}

/// Opens a file of fusectl through a detached mount, which is not in the tree.
fn open_unlisted(file: &Path, flags: OFlags) -> io::Result<File> {
    let connections = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&connections)?;
    let root = fsmount(&connections, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(root, file, flags, Mode::empty())?.into())
}
