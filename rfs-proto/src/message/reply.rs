//! The replies, and their contents.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::recall::Recalls;
use crate::{Attr, Errno, Extent, Granted, HeldLock, Identity, Locked, RegionRef, StatFs};

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request failed and changed nothing.
    Error(Errno),
    /// The request succeeded.
    Done,
    /// Reply to `Attach`.
    Attached(Attached),
    /// Attributes of an inode.
    Attr(Attr),
    /// Reply to `Open` and `Create`.
    Opened(Opened),
    /// Reply to `Layout` and `Allocate`.
    Layout(Layout),
    /// Reply to `Readlink`.
    Target(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Reply to `ReadDir` and `LookupAhead`.
    Dir(DirPage),
    /// Reply to `StatFs`.
    StatFs(StatFs),
    /// Reply to `Stats`.
    Stats(ServerStats),
    /// Reply to `GetXattr` and `ListXattr`.
    Value(Value),
    /// Reply to `Copy`.
    Copied(Copied),
    /// Reply to `Lock`: the lock is granted.
    Locked(Locked),
    /// Reply to `TestLock`.
    Conflict(Option<HeldLock>),
    /// Reply to `Recalls`.
    Recalls(Recalls),
    /// Reply to `Attach`: attached sessions exclude this one.
    InUse(InUse),
    /// Reply to `Lock`: the request waits. `Grants` returns its outcome.
    Waits,
    /// Reply to `Grants`: each outcome once, in order; never empty.
    Grants(Vec<Granted>),
    /// Reply to `Attach`: the previous session of the mount is still ending. The client tries
    /// again.
    Ending,
    /// Reply to `Grants`: the server restarted and has no waiting requests. The client sends its
    /// lock requests again, with any tickets.
    AskAgain,
    /// Reply to `Verify`.
    Verified(Verified),
    /// Reply to `Unlink`, `Rmdir` and `Rename`: success, and this inode lost its last name. The
    /// session may use the inode until it sends `Forget`.
    Unlinked(u64),
    /// Reply to `ReachStore`.
    Store(StoreAccess),
    /// Reply to `Birth`: nanoseconds since 1970. `None` if the server does not know it, because the
    /// inode is older than version 19.
    Birth(Option<i64>),
}

/// How a session reaches a store.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreAccess {
    /// Address of the store.
    pub address: String,
    /// Number of the chunk of the store that has the data of the export.
    pub chunk: u32,
    /// Number of the session at the stores.
    pub client: u64,
    /// Name of the key with which the store admits the session.
    pub ticket: String,
    /// Secret of that key.
    #[serde(with = "serde_bytes")]
    pub secret: Vec<u8>,
}

impl fmt::Debug for StoreAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreAccess { address, chunk, client, ticket, secret: _ } = self;
        f.debug_struct("StoreAccess")
            .field("address", address)
            .field("chunk", chunk)
            .field("client", client)
            .field("ticket", ticket)
            .finish_non_exhaustive()
    }
}

/// The result of a comparison of blocks with their checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Number of compared blocks.
    pub blocks: u64,
    /// Inode and offset at which to continue. `None` at the end.
    pub next: Option<(u64, u64)>,
    /// Blocks that do not match their checksums.
    pub bad: Vec<BadBlock>,
}

/// A block that does not match its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadBlock {
    /// Inode of the file.
    pub ino: u64,
    /// Offset of the block in the file.
    pub offset: u64,
    /// Offset of the block in the arena.
    pub arena: u64,
    /// Stored check.
    pub expected: u32,
    /// Check of the bytes in the arena.
    pub found: u32,
    /// A path of the file from the root directory on, or its last
    /// [`MAX_SHOWN_PATH`](crate::MAX_SHOWN_PATH) bytes; empty if the file has no name.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
}

/// The sessions that exclude another session from an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Number of attached sessions; at least one.
    pub sessions: u64,
    /// True if the attached session is exclusive.
    pub alone: bool,
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Number of copied bytes.
    pub bytes: u64,
    /// Attributes of the destination after the copy.
    pub attr: Attr,
}

/// Part of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Version of the inode's extended attributes. Parts of different versions do not belong
    /// together.
    pub version: u64,
    /// Length of the whole value, in bytes.
    pub len: u32,
    /// Bytes from the requested offset on, up to [`XATTR_PART`](crate::XATTR_PART).
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// The regions and the state of an attached session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The arena. Extents are relative to its first byte.
    pub arena: RegionRef,
    /// The table of attribute [`record`](crate::record)s, indexed by slot.
    pub table: RegionRef,
    /// The words of the arena's blocks, if the memory has [`checksum`](crate::checksum)s. The arena
    /// is then read-only.
    pub sums: Option<RegionRef>,
    /// Time on the server's clock, in nanoseconds since 1970. Clients write times on this clock.
    pub now: i64,
    /// Number of the session, never 0, for [`record::appender`](crate::record::appender).
    pub session: u64,
    /// The session may not change anything: such requests get EROFS, and the regions are read-only.
    pub read_only: bool,
    /// Identity of the export's memory. If it differs from an earlier one, the file system is a new
    /// one, and all earlier knowledge is invalid.
    pub memory: Identity,
    /// Number of servers that were started on this memory, including this one.
    pub starts: u64,
    /// The server still has the state of the mount. If false, the mount has no open files, locks or
    /// cached data.
    pub resumed: bool,
    /// The regions are read-only: the server writes data (`Request::Write`), sizes and times, and
    /// checks permissions.
    pub confined: bool,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Attributes after the open.
    pub attr: Attr,
    /// Extents from the first byte on.
    pub layout: Layout,
}

/// Part of the extents of a file, sorted by file offset and without overlap. A gap is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Layout generation of the inode.
    pub generation: u64,
    /// The first extent that ends after the requested offset, and the extents after it.
    pub extents: Vec<Extent>,
    /// True if the file has no extents after these.
    pub complete: bool,
}

/// A page of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirPage {
    /// Entries in the order of their cookies, without `.` and `..`. Cookies stay valid while the
    /// directory changes.
    pub entries: Vec<DirEntry>,
    /// Parent of the directory, for `..`.
    pub parent: u64,
    /// True if no entries follow.
    pub end: bool,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Position after this entry, for the next `Request::ReadDir`; never 0.
    pub cookie: u64,
    /// Name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Attributes.
    pub attr: Attr,
}

/// Counters of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Number of requests, by name of the request.
    pub calls: Vec<(String, u64)>,
    /// Number of attached sessions.
    pub sessions: u64,
    /// Seconds since the start of the server.
    pub uptime_secs: u64,
}
