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
pub struct ActiveMount {
    pub(super) path: PathBuf,
    pub(super) device: Option<String>,
    pub(super) maker: Maker,
}

/// The program that has made a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    /// This process, as root.
    Root,
    /// fusermount3.
    Helper,
    /// Another program, which also unmounts. `visible`: the mount is in the mount table of this
    /// process.
    Other { visible: bool },
}

impl Maker {
    /// Returns the name of a maker in arguments of the watchdog.
    pub(super) fn name(self) -> &'static str {
        match self {
            Maker::Root => "root",
            Maker::Helper => "helper",
            Maker::Other { .. } => "other",
        }
    }

    /// Returns the maker of a name. The watchdog never looks at a mount that it does not end.
    pub(super) fn named(name: &str) -> Option<Maker> {
        let all = [Maker::Root, Maker::Helper, Maker::Other { visible: false }];
        all.into_iter().find(|maker| maker.name() == name)
    }
}

/// Result of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount is not in the tree any more.
    Clean,
    /// A program uses the mount, which is still in the tree.
    Busy,
}

impl ActiveMount {
    /// Returns an `ActiveMount` without a mount.
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> ActiveMount {
        ActiveMount { path: path.to_owned(), device: None, maker: Maker::Root }
    }

    /// Returns a mount that another process of this program has made. `maker` is the name of its
    /// [maker](Self::maker_name).
    pub(crate) fn named(path: &Path, device: Option<String>, maker: &str) -> Option<ActiveMount> {
        Some(ActiveMount { path: path.to_owned(), device, maker: Maker::named(maker)? })
    }

    /// Returns the name of the program that has made the mount.
    pub(crate) fn maker_name(&self) -> &'static str {
        self.maker.name()
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the mount point if this process can reach the mount there.
    pub fn visible_path(&self) -> Option<&Path> {
        (self.maker != Maker::Other { visible: false }).then_some(&self.path)
    }

    /// Returns true for a mount that another program has made, and unmounts.
    pub fn is_handed_over(&self) -> bool {
        matches!(self.maker, Maker::Other { .. })
    }

    /// Returns true if an error of an access to the mount says nothing about the mount. The program
    /// that made the mount may have made it for another user.
    pub fn may_refuse(&self, error: &io::Error) -> bool {
        self.is_handed_over() && error.kind() == io::ErrorKind::PermissionDenied
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

    /// Unmounts unless a program uses the mount. Blocks until dirty pages are written back. Leaves
    /// a mount that another program has made.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        if self.is_handed_over() {
            return Ok(Unmounted::Busy);
        }
        if !self.is_mounted() {
            return Ok(Unmounted::Clean);
        }
        if self.maker == Maker::Helper {
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

    /// Takes the mount out of the tree at once. Programs keep their open files. Leaves a mount that
    /// another program has made.
    pub fn detach(&self) -> io::Result<()> {
        if self.is_handed_over() || !self.is_mounted() {
            return Ok(());
        }
        if self.maker == Maker::Helper {
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
        if self.maker == Maker::Root && self.is_mounted() {
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
