//! Making and ending mounts.
//!
//! As root by mount(2), otherwise through the setuid helper fusermount3. What comes out is an open FUSE device for
//! [`fuser::Session::from_fd`], and a [`Mounted`] that knows how to undo it. Nothing is unmounted by dropping: the program
//! decides when, and what to do if the mount is busy.

mod abort;
mod caretaker;
mod check;
mod deadline;
mod helper;
mod outside;
mod refusal;
mod table;

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

pub(crate) use caretaker::{Afterwards, Caretaker, Ground};
pub use check::mount_point;
pub use deadline::within;
pub use helper::helper;
pub use outside::{Look, look};

/// The device.
pub const DEVICE: &str = "/dev/fuse";

/// Why there is no mount, in one line.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point will not do.
    #[error("{}: {why}", path.display())]
    Point {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no usable FUSE device.
    #[error("{DEVICE}: {why}")]
    Device {
        /// What is wrong with it.
        why: String,
    },
    /// An ordinary user has no program to mount with.
    #[error("{}", refusal::NO_HELPER)]
    Helper,
    /// The kernel or fusermount3 refused.
    #[error("cannot mount on {}: {why}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// What was said.
        why: String,
    },
}

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// First column of the mount table.
    pub source: String,
    /// The type in the mount table: `fuse.` and a name.
    pub fs_type: String,
    /// Others than the user who mounts may use it.
    pub allow_other: bool,
    /// What the kernel does with it.
    pub flags: Flags,
}

/// Flags of a mount, as in mount(8). Device nodes and suid programs have no effect unless it says so.
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
    /// Each with its bit and what fusermount3 calls it.
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

/// How an unmount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone, or was already.
    Clean,
    /// Somebody uses it; it is still there.
    Busy,
}

/// If the program was started as one of its own helpers: does what that is for, and says with which exit code to end.
pub fn asked() -> Option<u8> {
    caretaker::asked().or_else(outside::asked)
}

/// Opens the FUSE device.
fn open_device() -> Result<OwnedFd, MountError> {
    let failed = |why| MountError::Device { why };
    // Not a wait for a writer, if it is a FIFO.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|e| failed(refusal::of_device(e)))?;
    let device = File::from(device);
    let meta = device.metadata().map_err(|e| failed(e.to_string()))?;
    if let Some(why) = refusal::of_file(&meta) {
        return Err(failed(why));
    }
    // The session waits for requests.
    rustix::fs::fcntl_setfl(&device, OFlags::empty()).map_err(|e| failed(e.to_string()))?;
    Ok(device.into())
}

/// Finds out whether this process can mount at all, without a mount.
///
/// # Errors
/// The device or the helper is missing.
pub fn device() -> Result<(), MountError> {
    // fusermount3 opens it with the rights of its user, too.
    open_device()?;
    if !rustix::process::geteuid().is_root() && helper().is_none() {
        return Err(MountError::Helper);
    }
    Ok(())
}

/// Gives a mount that is there other flags.
///
/// # Errors
/// The kernel's; nothing has changed.
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
    /// A mount that need not be there.
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Mounted {
        Mounted { path: path.to_owned(), device: None, by_helper: false }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mount's device number as `major:minor`, as in `/sys/class/bdi`.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// True while this mount, and not another one on the same directory, is the topmost there.
    pub fn is_mounted(&self) -> bool {
        let top = table::topmost(&self.path);
        top.is_some_and(|top| self.device.as_ref().is_none_or(|device| *device == top.device))
    }

    /// Unmounts if nobody uses it. May take as long as writing dirty pages back takes.
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

    /// Takes the mount out of the tree at once; those who use it keep what they have open.
    pub fn detach(&self) -> io::Result<()> {
        if !self.is_mounted() {
            return Ok(());
        }
        if self.by_helper {
            return helper::unmount(&self.path, true).map_err(io::Error::other);
        }
        Ok(rustix::mount::unmount(&self.path, UnmountFlags::DETACH)?)
    }

    /// Takes the mount out of the tree, and has calls that wait for an answer fail, where that can be done at once.
    fn detach_by_force(&self) -> io::Result<()> {
        if !self.by_helper && self.is_mounted() {
            return Ok(rustix::mount::unmount(&self.path, UnmountFlags::FORCE | UnmountFlags::DETACH)?);
        }
        self.detach()
    }

    /// Lets the kernel read ahead this far. The agreed maximum is bounded by the default of 128 KiB until this was
    /// written, which takes root.
    pub fn set_readahead(&self, bytes: u32) -> io::Result<()> {
        let Some(device) = &self.device else { return Err(io::ErrorKind::NotFound.into()) };
        std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), (bytes / 1024).to_string())
    }
}
