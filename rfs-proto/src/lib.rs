//! What rfs clients and rfs-server say to each other: messages, versions, limits.
//!
//! Wire types only: no I/O and no `unsafe`. `PROTOCOL.md` beside this crate describes every byte; the golden
//! tests hold the two together. File data moves one-sidedly, to and from the places that [`Extent`]s name, and so do sizes and
//! times, in [`record`]s. Only where memory has [`checksum`]s what is written travels in messages.
#![forbid(unsafe_code)]

mod attr;
pub mod checksum;
mod codec;
mod errno;
mod extent;
mod identity;
mod lock;
mod message;
pub mod record;

pub use attr::{Attr, Belongs, FileKind, Marks, Owner, SetAttr, SetTime, StatFs};
pub use codec::{
    DecodeError, attach_version, decode_reply, decode_reply_with, decode_request, encode_reply,
    encode_reply_with, encode_request,
};
pub use errno::Errno;
pub use extent::{Extent, RegionRef};
pub use identity::Identity;
pub use lock::{Granted, HeldLock, LockClass, LockKind, LockRange, Locked};
pub use message::{
    Attached, BadBlock, Copied, DirEntry, DirPage, FallocateFlags, Growth, InUse, Layout, Opened, Recall,
    Recalls, RenameFlags, Reply, Request, ServerStats, Value, Verified, XattrSet,
};

/// Version of everything in this crate. Peers must agree exactly.
pub const VERSION: u32 = 13;

/// Unit of space allocation, in bytes.
pub const BLOCK: u64 = 4096;

/// Longest message in bytes, either way.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Longest name of a directory entry, in bytes.
pub const MAX_NAME: usize = 255;

/// Longest target of a symbolic link, in bytes.
pub const MAX_SYMLINK: usize = 4095;

/// Longest name of an extended attribute, in bytes.
pub const MAX_XATTR_NAME: usize = 255;

/// Longest value of an extended attribute, and longest list of names, in bytes.
pub const MAX_XATTR_VALUE: usize = 64 * 1024;

/// Most bytes of a value in one message; longer ones come in parts.
pub const XATTR_PART: usize = 48 * 1024;

/// Most extents in one [`Layout`]; the client asks again for the rest.
pub const MAX_EXTENTS: usize = 2048;

/// Most bytes that one [`Request::Write`] has: whole blocks, so that what is longer is cut at blocks.
pub const WRITE_PART: usize = 60 * 1024;

/// Most inodes in one [`Request::Forget`].
pub const MAX_FORGET: usize = 4096;

/// Requests that a mount which comes back can have under way at a time ([`Request::Once`]).
pub const SLOTS: u32 = 256;

/// Most bytes of a path in a [`BadBlock`].
pub const MAX_SHOWN_PATH: usize = 512;

/// Largest file, in bytes: offsets stay positive in a signed 64-bit number.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;
