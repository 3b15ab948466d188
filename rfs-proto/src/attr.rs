//! Attributes of files and file systems.

use serde::{Deserialize, Serialize};

/// What an inode is.
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
    /// The `S_IFMT` bits of a mode.
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

    /// The kind that the `S_IFMT` bits of `mode` name; `None` for bits that name nothing.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        use FileKind::*;
        [Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice]
            .into_iter()
            .find(|kind| kind.mode_bits() == mode & 0o170_000)
    }
}

/// Attributes of an inode. Times are nanoseconds since 1970 on the server's clock; they saturate at the years
/// 1677 and 2262.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number, never reused while the server runs.
    pub ino: u64,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits (07777).
    pub perm: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes, as `st_rdev`.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: i64,
    /// Last change of contents.
    pub mtime: i64,
    /// Last change of contents or attributes.
    pub ctime: i64,
    /// Grows whenever extents of this inode were taken away (truncate): layouts from before are void.
    pub layout_generation: u64,
    /// Index of its [`record`](crate::record) in the attribute table.
    pub slot: u32,
    /// What it has that need not be asked for where it is not.
    pub marks: Marks,
}

bitflags::bitflags! {
    /// What an inode has besides attributes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Marks: u32 {
        /// Extended attributes, or an ACL.
        const XATTRS = 1;
        /// security.capability among them.
        const CAPABILITY = 2;
        /// In a reply to a session that keeps: it may keep these attributes, and pages read after it, until they are recalled.
        /// Not in a record.
        const KEEP = 4;
        /// In the reply to an open to write: other sessions have the file open, and the session
        /// sends [`Request::DropPages`](crate::Request::DropPages) after each write until its last
        /// close. Not in a record.
        const SHARED = 8;
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The server's clock, at the change.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// Whom an inode has to belong to, or it is not changed (EPERM). What a client has checked before may not be so any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Belongs {
    /// Owner.
    pub uid: u32,
    /// Group; any if it is not said.
    pub gid: Option<u32>,
}

/// To whom something new belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory is setgid.
    pub gid: u32,
}

/// Attribute changes; `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length: shrinking frees space, growing makes a hole.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of contents.
    pub mtime: Option<SetTime>,
    /// Take set-user-ID away, and set-group-ID where the group may execute, as a write by somebody without privileges
    /// does. A change of owner or group does so in any case, unless `perm` is set, too.
    pub drop_privileges: bool,
    /// Last change of contents or attributes, in nanoseconds since 1970; now if it is not said.
    pub ctime: Option<i64>,
    /// Nothing is changed unless this is so.
    pub only_if: Option<Belongs>,
}

/// Totals of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFs {
    /// Space lent, in blocks of [`BLOCK`](crate::BLOCK) bytes.
    pub blocks: u64,
    /// Blocks that no file holds.
    pub blocks_free: u64,
    /// Inodes that fit.
    pub inodes: u64,
    /// Inodes not in use.
    pub inodes_free: u64,
}
