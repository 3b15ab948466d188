//! The protocol between rfs clients and rfs-server: messages, versions, limits.
//!
//! The crate has wire types only: no I/O and no `unsafe`. `docs/design/protocol.md` of the
//! repository describes every byte, and `tests/all/golden.rs` compares it with this code. Clients
//! read and write file data one-sidedly at the arena addresses of [`Extent`]s. They read attributes
//! one-sidedly from [`record`]s. If the memory has [`checksum`]s, written data travels in messages
//! instead.
#![forbid(unsafe_code)]

mod attr;
pub mod checksum;
mod client_description;
mod codec;
mod errno;
mod extent;
mod identity;
mod lock;
mod message;
mod posix;
pub mod record;

pub use attr::{Attr, ExpectedOwner, FileKind, Marks, Owner, SetAttr, SetTime, StatFs};
pub use client_description::ClientDescription;
pub use codec::{
    DecodeError, attach_version, decode_reply, decode_reply_with, decode_request, encode_reply,
    encode_reply_with, encode_request, encode_version_refusal, needed_version, refused_by_version,
};
pub use errno::Errno;
pub use extent::{DataPlace, Extent, RegionRef, moves};
pub use identity::Identity;
pub use lock::{Granted, HeldLock, LockClass, LockKind, LockRange, Locked};
pub use message::{
    Attached, BadBlock, Copied, DirEntry, DirPage, FallocateFlags, Growth, InUse, Layout, Opened, Recall,
    Recalls, RenameFlags, Reply, Request, ServerStats, StoreAccess, Value, Verified, XattrSet,
};
pub use posix::{acl, mode, xattr};

/// Newest version of the protocol that this program speaks.
pub const VERSION: u32 = 19;

/// Oldest version of the protocol that this program speaks. It is the version of the last release.
pub const OLDEST_VERSION: u32 = 18;

/// Returns whether this program speaks a version of the protocol.
pub fn speaks(version: u32) -> bool {
    (OLDEST_VERSION..=VERSION).contains(&version)
}

/// Unit of space allocation, in bytes.
pub const BLOCK: u64 = 4096;

/// Maximum length of a request or reply, in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Maximum length of the name of a directory entry, in bytes.
pub const MAX_NAME: usize = 255;

/// Maximum length of the target of a symbolic link, in bytes.
pub const MAX_SYMLINK: usize = 4095;

/// Maximum length of the name of an extended attribute, in bytes.
pub const MAX_XATTR_NAME: usize = 255;

/// Maximum length of the value of an extended attribute, and of the list of names, in bytes.
pub const MAX_XATTR_VALUE: usize = 64 * 1024;

/// Maximum length of a value in one message, in bytes. A longer value is split into parts.
pub const XATTR_PART: usize = 48 * 1024;

/// Maximum number of extents in one [`Layout`]. The client sends another request for the rest.
pub const MAX_EXTENTS: usize = 2048;

/// Maximum length of the data of one [`Request::Write`], in bytes. It is a multiple of [`BLOCK`],
/// so that a longer write is split at block boundaries.
pub const WRITE_PART: usize = 60 * 1024;

/// Maximum number of inodes in one [`Request::Forget`].
pub const MAX_FORGET: usize = 4096;

/// Number of slots of a mount: the number of outstanding [`Request::Once`] requests.
pub const SLOTS: u32 = 256;

/// Maximum length of the path in a [`BadBlock`], in bytes.
pub const MAX_SHOWN_PATH: usize = 512;

/// Maximum size of a file, in bytes. Offsets fit a signed 64-bit number.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;

// Runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
