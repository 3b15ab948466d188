//! Files without FUSE: the client of an rfs-server.
//!
//! A [`Client`] is one session with one server. Names, opening and space are calls to the server; data, sizes and
//! times move one-sidedly, so that reading and writing an open file with space runs no server code. Where memory has checksums
//! what is written goes to the server in calls.
//!
//! Every method may be called from any number of threads. Reads and writes of one inode run side by side; a change
//! of its size excludes them. Every wait ends within the session's timeouts. An inode that a method returned is
//! referenced until [`Client::forget`] gave the reference back; an open one until its last [`Client::close`].
//!
//! What the caller may keep, and for how long, is said by [`Client::telling`]; what it may no longer keep, by a [`Keeper`].
//!
//! It does not cache file data, and checks no permissions. It comes back by itself where [`AttachOptions::returns`] says so.

mod access;
mod again;
mod aliases;
mod append;
mod by_server;
mod checked;
mod clock;
mod connect;
mod data;
mod error;
mod extents;
#[cfg(test)]
mod fake;
mod farewell;
mod holdings;
mod inode;
mod keeping;
mod later;
mod layout;
mod locks;
mod lookup;
mod names;
mod open;
mod orphans;
mod record;
mod remote;
mod renewal;
mod repeatable;
mod returning;
mod sharing;
mod size;
mod space;
#[cfg(test)]
mod tests;
mod writeback;
mod xattr;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

pub use access::AccessTimes;
pub use connect::{AttachError, AttachOptions};
pub use data::ReadData;
pub use error::{ClientError, errno_of_completion, errno_of_request};
pub use extents::Seek;
pub use farewell::Farewell;
pub use keeping::{Changes, Keeper, Opened, Since, Telling, UnderWay};
pub use later::{LaterWrite, Next};
pub use locks::{Asked, LockRequest};
pub use names::Creator;
pub use orphans::Arrival;
pub use remote::{ReadDone, Remote, WriteDone};

use parking_lot::Mutex;

use clock::ServerClock;
use inode::InodeTable;
use keeping::Keeping;
use later::{Company, Gathered, Repeats, Transfers};
use record::Records;
use rfs_proto::{Identity, RegionRef};

/// One session with one server.
#[derive(Debug)]
pub struct Client {
    remote: Arc<dyn Remote>,
    arena: RegionRef,
    /// The arena in place, where the provider maps it.
    arena_map: Option<remote::Mapped>,
    records: Records,
    /// Checksums of what is in the arena, if it has any.
    sums: Option<checked::Sums>,
    clock: ServerClock,
    inodes: Arc<InodeTable>,
    transfers: Transfers,
    company: Company,
    gathered: Gathered,
    repeats: Arc<Repeats>,
    keeping: Arc<Keeping>,
    access_times: AccessTimes,
    directory_access_times: AccessTimes,
    /// Held while a value goes to the server in parts, of which it keeps one.
    parts: Mutex<()>,
    /// Nobody else uses the file system.
    alone: bool,
    /// The session's number at the server.
    session: Arc<AtomicU64>,
    /// Who this mount is, if it comes back.
    mount: Option<Identity>,
    /// It may change nothing.
    read_only: bool,
    /// The memory can only be read: the server writes, and says the time of it.
    confined: bool,
    /// For how long one waits for another client.
    patience: Duration,
}
