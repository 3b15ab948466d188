//! The client of an rfs-server, without FUSE.
//!
//! A [`Client`] is one session with one server. Lookups, opens and allocation are calls to the
//! server. Data, sizes and times move one-sidedly: reads and writes of an open file with
//! allocated space run no server code. If the export has checksums, the client sends written data
//! to the server in calls.
//!
//! The client caches no file data and checks no permissions. It reconnects by itself if
//! [`AttachOptions::returns`] is set. [`Client::telling`] says which replies the caller may
//! cache; a [`Keeper`] hears of recalls.
//!
//! # Concurrency
//! Any number of threads call every method. Reads and writes of one inode run in parallel; a
//! change of its size excludes them. Every wait ends within the session's timeouts. An inode is
//! referenced until its last [`Client::forget`], and open until its last [`Client::close`].

mod aliases;
mod append;
mod async_io;
mod atime;
mod attach;
mod attr_record;
mod cache;
mod checksum_read;
mod checksum_write;
mod clock;
mod data;
mod detach;
mod error;
mod extents;
#[cfg(test)]
mod fake;
mod held_locks;
mod idempotent;
mod inode;
mod layout;
mod locks;
mod lookup;
mod names;
mod open;
mod orphans;
mod reattach;
mod reclaim;
mod reconnect;
mod remote;
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

pub use async_io::{LaterWrite, Next};
pub use atime::AccessTimes;
pub use attach::{AttachError, AttachOptions};
pub use cache::{Changes, Keeper, Opened, Since, Telling, UnderWay};
pub use data::ReadData;
pub use detach::Farewell;
pub use error::{ClientError, errno_of_completion, errno_of_request};
pub use extents::Seek;
pub use locks::{Asked, LockRequest};
pub use names::Creator;
pub use orphans::Arrival;
pub use remote::{ReadDone, Remote, WriteDone};

use parking_lot::Mutex;

use async_io::{AloneStreak, Coalescer, InFlight, WriteRetries};
use attr_record::Records;
use cache::Cache;
use clock::ServerClock;
use inode::InodeTable;
use rfs_proto::{Identity, RegionRef};

/// One session with one server.
#[derive(Debug)]
pub struct Client {
    remote: Arc<dyn Remote>,
    arena: RegionRef,
    /// Local mapping of the arena, if the provider maps it.
    arena_map: Option<remote::Mapped>,
    records: Records,
    /// Checksums of the arena, if the export has them.
    sums: Option<checksum_read::Checksums>,
    clock: ServerClock,
    inodes: Arc<InodeTable>,
    in_flight: InFlight,
    alone_streak: AloneStreak,
    coalescer: Coalescer,
    write_retries: Arc<WriteRetries>,
    cache: Arc<Cache>,
    access_times: AccessTimes,
    directory_access_times: AccessTimes,
    /// Held while a value goes to the server in several parts. The server stores one pending first
    /// part per session.
    parts: Mutex<()>,
    /// True if no other session may use the export.
    alone: bool,
    /// Number of the session at the server.
    session: Arc<AtomicU64>,
    /// Identity of this mount at the server, if the client reconnects.
    mount: Option<Identity>,
    /// True if the session may change nothing.
    read_only: bool,
    /// True if the session may only read the memory: the server writes data and times.
    confined: bool,
    /// Limit of a wait for another client.
    wait_limit: Duration,
}
