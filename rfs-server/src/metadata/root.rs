//! The root directory of a new export.
//!
//! # Concurrency
//! A plain value.

use rfs_proto::{Errno, FileKind, ROOT_INO};

use super::{
    attr_table::Table,
    namespace::inode::{Inode, New},
};

/// The owner and permissions of an export's root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Root {
    /// Creates the inode of the root directory and publishes its record.
    pub(crate) fn begin(self, table: &Table, now: i64) -> Result<Inode, Errno> {
        let slot = table.take().ok_or(Errno::ENOSPC)?;
        let Root { perm, uid, gid } = self;
        let kind = FileKind::Directory;
        let root =
            Inode::new(New { kind, perm, umask: 0, uid, gid, rdev: 0, target: b"", slot }, ROOT_INO, now);
        table.publish_all(&root.attr(ROOT_INO), &root.space());
        Ok(root)
    }
}
