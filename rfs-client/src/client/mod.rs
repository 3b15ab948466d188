//! The client, and the steps that several operations share.

pub(crate) mod layouts;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use rfs_proto::{Identity, RegionRef};

use crate::{
    AccessTimes, Remote,
    cache::Cache,
    inode::InodeTable,
    io::checksum_read::Checksums,
    memory::records::Records,
    remote::{Mapped, clock::ServerClock},
    transfers::{
        coalescer::Coalescer,
        in_flight::{AloneStreak, InFlight},
        write_retries::WriteRetries,
    },
};

/// One session with one server.
#[derive(Debug)]
pub struct Client {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) arena: RegionRef,
    /// Local mapping of the arena, if the provider maps it.
    pub(crate) arena_map: Option<Mapped>,
    pub(crate) records: Records,
    /// Checksums of the arena, if the export has them.
    pub(crate) sums: Option<Checksums>,
    pub(crate) clock: ServerClock,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) in_flight: InFlight,
    pub(crate) alone_streak: AloneStreak,
    pub(crate) coalescer: Coalescer,
    pub(crate) write_retries: Arc<WriteRetries>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) access_times: AccessTimes,
    pub(crate) directory_access_times: AccessTimes,
    /// Held while a value goes to the server in several parts. The server stores one pending first
    /// part per session.
    pub(crate) parts: Mutex<()>,
    /// True if no other session may use the export.
    pub(crate) alone: bool,
    /// Number of the session at the server.
    pub(crate) session: Arc<AtomicU64>,
    /// Identity of this mount at the server, if the client reconnects.
    pub(crate) mount: Option<Identity>,
    /// True if the session may change nothing.
    pub(crate) read_only: bool,
    /// True if the session may only read the memory: the server writes data and times.
    pub(crate) confined: bool,
    /// Limit of a wait for another client.
    pub(crate) wait_limit: Duration,
}
