//! The replies, and their contents.

mod attach;
mod directory;
mod file;
mod store_access;
mod verify;

use serde::{Deserialize, Serialize};

pub use attach::{Attached, InUse};
pub use directory::{DirEntry, DirPage};
pub use file::{Copied, Layout, Opened, Value};
pub use store_access::StoreAccess;
pub use verify::{BadBlock, Verified};

use super::recall::Recalls;
use crate::{Attr, Errno, Granted, HeldLock, Locked, StatFs};

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
