//! Attributes of files and file systems.

mod changes;
mod file_kind;
mod stat_fs;

use serde::{Deserialize, Serialize};

pub use changes::{ExpectedOwner, Owner, SetAttr, SetTime};
pub use file_kind::FileKind;
pub use stat_fs::StatFs;

/// Attributes of an inode. Times are nanoseconds since 1970 on the server's clock. They saturate at
/// the years 1677 and 2262.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number, never reused while the server runs.
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
    /// Device number of a device node, as `st_rdev`.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access.
    pub atime: i64,
    /// Time of the last change of contents.
    pub mtime: i64,
    /// Time of the last change of contents or attributes.
    pub ctime: i64,
    /// Layout generation. The server raises it when it removes extents (truncate, hole). Layouts of
    /// an earlier generation are invalid.
    pub layout_generation: u64,
    /// Index of the [`record`](crate::record) in the table.
    pub slot: u32,
    /// Flags of the inode and of this reply.
    pub marks: Marks,
}

bitflags::bitflags! {
    /// Flags of an inode. Clients skip requests for extended attributes that the flags exclude.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Marks: u32 {
        /// The inode has extended attributes or an ACL.
        const XATTRS = 1;
        /// The inode has the extended attribute security.capability.
        const CAPABILITY = 2;
        /// The session may cache these attributes, and pages that it reads from now on, until the
        /// server recalls them. Only in replies to sessions that cache, never in a record.
        const KEEP = 4;
        /// Other sessions have the file open. The session sends
        /// [`Request::DropPages`](crate::Request::DropPages) after each write until its last close.
        /// Only in replies to an open for writing, never in a record.
        const SHARED = 8;
        /// Sessions may cache pages of the file, while a session has it open for writing. Each
        /// writer looks at the mark after its bytes are in place. If the mark is clear, it sends no
        /// [`Request::DropPages`](crate::Request::DropPages). Only in a record, never in a reply.
        const PAGES = 16;
    }
}
