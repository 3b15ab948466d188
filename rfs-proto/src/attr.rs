//! Attributes of files and file systems.

use serde::{Deserialize, Serialize};

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// Returns the `S_IFMT` bits of a mode.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Fifo => 0o010_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::Directory => 0o040_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::Regular => 0o100_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Socket => 0o140_000,
        }
    }

    /// Returns the kind for the `S_IFMT` bits of `mode`, or `None` if no kind has these bits.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        use FileKind::*;
        [Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice]
            .into_iter()
            .find(|kind| kind.mode_bits() == mode & 0o170_000)
    }
}

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

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The time of the change on the server's clock.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// The required owner of an inode. If the owner differs, the server changes nothing and replies
/// EPERM. It protects a permission check of the client against a concurrent change of owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedOwner {
    /// Owner.
    pub uid: u32,
    /// Group. `None` accepts any group.
    pub gid: Option<u32>,
}

/// The owner of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory is setgid.
    pub gid: u32,
}

/// Attribute changes. `None` leaves a field unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes. A smaller length frees space, a larger one adds a hole.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<SetTime>,
    /// Time of the last change of contents.
    pub mtime: Option<SetTime>,
    /// Clears set-user-ID, set-group-ID if the group may execute, and security.capability, as a
    /// write by an unprivileged user does. A change of owner or group does so too, unless `perm` is
    /// set.
    pub drop_privileges: bool,
    /// Time of the last change of contents or attributes, in nanoseconds since 1970. `None` is now.
    pub ctime: Option<i64>,
    /// Required owner.
    pub only_if: Option<ExpectedOwner>,
}

/// Totals of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFs {
    /// Size of the arena, in blocks of [`BLOCK`](crate::BLOCK) bytes.
    pub blocks: u64,
    /// Number of free blocks.
    pub blocks_free: u64,
    /// Maximum number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
}
