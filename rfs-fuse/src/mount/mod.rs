//! Mounts and unmounts.
//!
//! Root mounts by mount(2), other users by the setuid helper fusermount3. The result is an open
//! FUSE device for [`fuser::Session::from_fd`], and a [`Mounted`] that unmounts. Dropping it does
//! not unmount: the program decides when to unmount, and how to handle a busy mount.
//!
//! # Concurrency
//! The main thread, and threads of [`within`]. Takes no locks.

mod abort;
mod check;
mod deadline;
mod helper;
mod probe;
mod refusal;
mod table;
mod watchdog;

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    mount::{MountFlags, UnmountFlags},
};

pub use check::mount_point;
pub use deadline::within;
pub use helper::helper;
pub use probe::{Look, look};
pub(crate) use watchdog::{AfterKill, CoveredDirectory, Watchdog};

/// Path of the FUSE device.
pub const DEVICE: &str = "/dev/fuse";

/// A failed mount. The message is one line.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is not usable.
    #[error("{}: {why}", path.display())]
    Point {
        /// Path of the mount point, as the user gave it.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// There is no usable FUSE device.
    #[error("{DEVICE}: {why}")]
    Device {
        /// The reason.
        why: String,
    },
    /// The user is not root, and fusermount3 is missing.
    #[error("{}", refusal::NO_HELPER)]
    Helper,
    /// The kernel or fusermount3 has refused the mount.
    #[error("cannot mount on {}: {why}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The reason, and the next step.
        why: String,
    },
}

/// Options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// First column of the mount table.
    pub source: String,
    /// The type in the mount table: `fuse.` and a name.
    pub fs_type: String,
    /// True if all users may use the mount.
    pub allow_other: bool,
    /// Flags that the kernel enforces.
    pub flags: Flags,
}

/// Flags of a mount, as in mount(8). Device nodes and set-user-ID programs take effect only with
/// `dev` and `suid`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, clippy::struct_excessive_bools, reason = "they are mount(8)'s")]
pub struct Flags {
    pub read_only: bool,
    pub noexec: bool,
    pub suid: bool,
    pub dev: bool,
    pub sync: bool,
    pub dirsync: bool,
    pub noatime: bool,
    pub nodiratime: bool,
    pub strictatime: bool,
}

impl Flags {
    /// Returns the set flags: the bit of mount(2), and the name for fusermount3.
    fn set(self) -> impl Iterator<Item = (MountFlags, &'static str)> {
        [
            (!self.suid, MountFlags::NOSUID, "nosuid"),
            (!self.dev, MountFlags::NODEV, "nodev"),
            (self.read_only, MountFlags::RDONLY, "ro"),
            (self.noexec, MountFlags::NOEXEC, "noexec"),
            (self.sync, MountFlags::SYNCHRONOUS, "sync"),
            (self.dirsync, MountFlags::DIRSYNC, "dirsync"),
            (self.noatime, MountFlags::NOATIME, "noatime"),
            (self.nodiratime, MountFlags::NODIRATIME, "nodiratime"),
            (self.strictatime, MountFlags::STRICTATIME, "strictatime"),
        ]
        .into_iter()
        .filter(|(is_set, ..)| *is_set)
        .map(|(_, bit, name)| (bit, name))
    }

    fn bits(self) -> MountFlags {
        self.set().fold(MountFlags::empty(), |all, (bit, _)| all | bit)
    }
}

/// A mount of this process.
#[derive(Clone, Debug)]
pub struct Mounted {
    path: PathBuf,
    device: Option<String>,
    by_helper: bool,
}

/// Result of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount is not in the tree any more.
    Clean,
    /// A program uses the mount, which is still in the tree.
    Busy,
}

/// Runs a helper process of this module and returns its exit code, if this process was started as
/// one.
pub fn asked() -> Option<u8> {
    watchdog::run_if_asked().or_else(probe::run_if_asked)
}

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

/// Mounts on a directory that [`mount_point`] approved.
pub fn mount(path: &Path, options: &MountOptions) -> Result<(OwnedFd, Mounted), MountError> {
    let refused = |why: String| MountError::Refused { path: path.to_owned(), why };
    let (fd, by_helper) = if rustix::process::geteuid().is_root() {
        let fd = open_device()?;
        mount_directly(&fd, path, options)
            .map_err(|e| refused(refusal::of_mount(e, refusal::Setting::here())))?;
        (fd, false)
    } else {
        let mounted = helper::mount(path, options);
        (mounted.map_err(|said| refused(refusal::of_helper(&said, refusal::Setting::here())))?, true)
    };
    let device = table::topmost(path).map(|entry| entry.device);
    Ok((fd, Mounted { path: path.to_owned(), device, by_helper }))
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
    let data = CString::new(data).map_err(|_| rustix::io::Errno::INVAL)?;
    let (source, fs_type) = (options.source.as_str(), options.fs_type.as_str());
    rustix::mount::mount(source, path, fs_type, options.flags.bits(), data.as_c_str())
}

impl Mounted {
    /// Returns a `Mounted` without a mount.
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Mounted {
        Mounted { path: path.to_owned(), device: None, by_helper: false }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the mount's device number as `major:minor`, as in `/sys/class/bdi`.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns true while this mount is the topmost one on its directory.
    pub fn is_mounted(&self) -> bool {
        let top = table::topmost(&self.path);
        top.is_some_and(|top| self.device.as_ref().is_none_or(|device| *device == top.device))
    }

    /// Unmounts unless a program uses the mount. Blocks until dirty pages are written back.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        if !self.is_mounted() {
            return Ok(Unmounted::Clean);
        }
        if self.by_helper {
            return match helper::unmount(&self.path, false) {
                Ok(()) => Ok(Unmounted::Clean),
                Err(_) if !self.is_mounted() => Ok(Unmounted::Clean),
                Err(why) if why.contains("busy") => Ok(Unmounted::Busy),
                Err(why) => Err(io::Error::other(why)),
            };
        }
        match rustix::mount::unmount(&self.path, UnmountFlags::empty()) {
            Ok(()) => Ok(Unmounted::Clean),
            Err(rustix::io::Errno::BUSY) => Ok(Unmounted::Busy),
            Err(_) if !self.is_mounted() => Ok(Unmounted::Clean),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes the mount out of the tree at once. Programs keep their open files.
    pub fn detach(&self) -> io::Result<()> {
        if !self.is_mounted() {
            return Ok(());
        }
        if self.by_helper {
            return helper::unmount(&self.path, true).map_err(io::Error::other);
        }
        Ok(rustix::mount::unmount(&self.path, UnmountFlags::DETACH)?)
    }

    /// Takes the mount out of the tree. As root, also fails calls that wait for a reply.
    fn detach_by_force(&self) -> io::Result<()> {
        if !self.by_helper && self.is_mounted() {
            return Ok(rustix::mount::unmount(&self.path, UnmountFlags::FORCE | UnmountFlags::DETACH)?);
        }
        self.detach()
    }

    /// Sets the kernel's read-ahead. Only root may. Without it, the kernel caps the negotiated
    /// read-ahead at 128 KiB.
    pub fn set_readahead(&self, bytes: u32) -> io::Result<()> {
        let Some(device) = &self.device else { return Err(io::ErrorKind::NotFound.into()) };
        std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), (bytes / 1024).to_string())
    }
}
