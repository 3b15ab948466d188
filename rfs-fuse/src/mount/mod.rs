//! Mounts and unmounts.
//!
//! Root mounts by mount(2), other users by the setuid helper fusermount3. The result is an open
//! FUSE device for [`fuser::Session::from_fd`], and an [`ActiveMount`] that unmounts. Dropping it
//! does not unmount: the program decides when to unmount, and how to handle a busy mount. Or
//! another program has mounted, and hands the open device over.
//!
//! # Concurrency
//! The main thread, and threads of [`within`]. Takes no locks.

mod active_mount;
mod check;
pub(crate) mod connection;
mod deadline;
mod dev_fd;
mod error;
mod helper;
mod options;
mod probe;
mod refusal;
mod watchdog;

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

use active_mount::Maker;
pub use active_mount::{ActiveMount, Unmounted};
pub use check::mount_point;
pub use deadline::within;
pub(crate) use dev_fd::{check as check_descriptor, descriptor, take};
pub use error::{DEVICE, MountError};
pub use helper::helper;
pub use options::{Flags, MountOptions};
pub use probe::{ProbeAction, look};
pub(crate) use rfs_status::mounts::{sockets as control, table};
pub(crate) use watchdog::end_by_force;
pub(crate) use watchdog::{AfterKill, CoveredDirectory, Watchdog};

/// Runs a helper process of this module and returns its exit code, if this process was started as
/// one.
pub fn asked() -> Option<u8> {
    watchdog::run_if_asked().or_else(probe::run_if_asked)
}

/// Where the kernel has SELinux.
const SELINUX: &str = "/sys/fs/selinux";

/// Opens the FUSE device.
fn open_device() -> Result<OwnedFd, MountError> {
    let failed = |why| MountError::Device { why };
    // NONBLOCK: opening a FIFO in place of the device must not block.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|e| failed(refusal::of_device(e)))?;
    let device = File::from(device);
    let meta = device.metadata().map_err(|e| failed(e.to_string()))?;
    if let Some(why) = refusal::of_file(&meta) {
        return Err(failed(why));
    }
    // Reads of the session block.
    rustix::fs::fcntl_setfl(&device, OFlags::empty()).map_err(|e| failed(e.to_string()))?;
    Ok(device.into())
}

/// Checks that this process can mount, without a mount.
///
/// # Errors
/// The device or the helper is missing.
pub fn device() -> Result<(), MountError> {
    // fusermount3 opens the device with the rights of its user.
    open_device()?;
    if !rustix::process::geteuid().is_root() && helper().is_none() {
        return Err(MountError::Helper);
    }
    Ok(())
}

/// Changes the flags of an existing mount.
///
/// # Errors
/// The kernel refuses. The flags are unchanged.
pub fn remount(path: &Path, flags: Flags) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(path, flags.bits(), c"")?)
}

/// Where to serve a mount.
#[derive(Debug)]
pub enum Target {
    /// On this directory, which [`mount_point`] approved.
    Directory(PathBuf),
    /// On an open FUSE device that another program has mounted.
    HandedOver(OwnedFd, ActiveMount),
}

impl Target {
    /// Returns the mount point, or the name of the device's descriptor if it is unknown.
    pub fn path(&self) -> &Path {
        match self {
            Target::Directory(path) => path,
            Target::HandedOver(_, mounted) => mounted.path(),
        }
    }
}

/// Mounts on a directory that [`mount_point`] approved.
pub fn mount(path: &Path, options: &MountOptions) -> Result<(OwnedFd, ActiveMount), MountError> {
    let refused = |why: String| MountError::Refused { path: path.to_owned(), why };
    let (fd, maker) = if rustix::process::geteuid().is_root() {
        let fd = open_device()?;
        mount_directly(&fd, path, options)
            .map_err(|e| refused(refusal::of_mount(e, refusal::Setting::here())))?;
        (fd, Maker::Root)
    } else {
        let mounted = helper::mount(path, options);
        (mounted.map_err(|said| refused(refusal::of_helper(&said, refusal::Setting::here())))?, Maker::Helper)
    };
    let device = table::topmost(path).map(|entry| entry.device);
    Ok((fd, ActiveMount { path: path.to_owned(), device, maker }))
}

fn mount_directly(fd: &OwnedFd, path: &Path, options: &MountOptions) -> Result<(), rustix::io::Errno> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions",
        fd.as_fd().as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    data.push_str(&options.label_options(Path::new(SELINUX).exists()));
    let data = CString::new(data).map_err(|_| rustix::io::Errno::INVAL)?;
    let (source, fs_type) = (options.source.as_str(), options.fs_type.as_str());
    rustix::mount::mount(source, path, fs_type, options.flags.bits(), data.as_c_str())
}
