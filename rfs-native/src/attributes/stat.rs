//! Attributes of an inode, for callers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rfs_proto::{Attr, FileKind};

/// Attributes of an inode, as stat(2) returns them. Times are those of the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Number of the inode, never reused while the server runs.
    pub ino: u64,
    /// Type of the inode.
    pub kind: FileKind,
    /// Permission bits (07777).
    pub perm: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Last access, in nanoseconds since 1970.
    pub atime: i64,
    /// Last change of contents, in nanoseconds since 1970.
    pub mtime: i64,
    /// Last change of contents or attributes, in nanoseconds since 1970.
    pub ctime: i64,
}

impl Stat {
    pub(crate) fn of(attr: &Attr) -> Stat {
        let &Attr { ino, kind, perm, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, .. } = attr;
        Stat { ino, kind, perm, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime }
    }

    /// Returns true for a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::Regular
    }

    /// Returns true for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Returns true for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
    }

    /// Returns kind and permission bits, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }

    /// Returns the time of the last change of contents.
    pub fn modified(&self) -> SystemTime {
        let offset = Duration::from_nanos(self.mtime.unsigned_abs());
        if self.mtime < 0 { UNIX_EPOCH - offset } else { UNIX_EPOCH + offset }
    }
}
