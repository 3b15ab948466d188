//! A mount of this process, and its end.
//!
//! # Concurrency
//! The main thread, and threads of `deadline`. Takes no locks.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::mount::UnmountFlags;

use super::{connection::abort::Abort, control, helper, table};

/// A mount of this process.
#[derive(Clone, Debug)]
pub struct Mounted {
    pub(super) path: PathBuf,
    pub(super) device: Option<String>,
    pub(super) by_helper: bool,
}

/// Result of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount is not in the tree any more.
    Clean,
    /// A program uses the mount, which is still in the tree.
    Busy,
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

    /// Returns the path of the control socket, on which this process answers questions.
    pub fn control_path(&self) -> Option<PathBuf> {
        self.device.as_deref().map(control::own_path)
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

    /// Aborts the connection with the kernel: calls that wait for a reply fail, and all later ones.
    ///
    /// # Errors
    /// This user may not, or the connection has ended.
    pub(crate) fn abort(&self) -> io::Result<()> {
        let device = self.device.as_deref().ok_or(io::ErrorKind::NotFound)?;
        Abort::of(device)?.abort()
    }

    /// Takes the mount out of the tree. As root, also fails calls that wait for a reply.
    pub(super) fn detach_by_force(&self) -> io::Result<()> {
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
