//! The status of a server: the memory that it lends, its clients, and waiting operations.
//!
//! [`ServerStatus`] is a plain value. `collect` makes it from a running server, `table` renders it
//! for people, and `metrics` for Prometheus. `rfs-server status --json` prints its JSON form: names
//! of fields stay, new ones may come. No I/O, no locks, no clock.

mod collect;
mod collect_pool;
mod metrics;
pub mod pool;
mod table;

use std::collections::BTreeMap;

use rfs_status::{latency::Latency, logging::LogCounts, process::ProcessStatus};
use serde::{Deserialize, Serialize};

pub(super) use collect::ObservedExport;
pub use collect::{NO_POOL, StatusSource};
pub use pool::PoolStatus;

/// The status of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// Version of the program.
    pub version: String,
    /// Version of the protocol.
    pub protocol: u32,
    /// Memory, threads and descriptors.
    pub process: ProcessStatus,
    /// Addresses on which it listens.
    pub addresses: Vec<String>,
    /// The exports.
    pub exports: Vec<ExportStatus>,
    /// The sessions, by export and number.
    pub sessions: Vec<SessionStatus>,
    /// Lock requests that wait, up to 100 of each export.
    pub lock_waits: Vec<LockWaitStatus>,
    /// The stores, if the server has some.
    pub pool: Option<PoolStatus>,
    /// Warnings and errors since the start.
    pub log: LogCounts,
    /// Counters of the runtime since the start, by name.
    pub runtime: BTreeMap<String, u64>,
}

/// An export.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportStatus {
    /// Its name.
    pub name: String,
    /// Size for file data.
    pub size_bytes: u64,
    /// Largest size of the server's own memory for file data, without stores.
    pub max_bytes: u64,
    /// Bytes that files can still get, as df(1) shows them.
    pub free_bytes: u64,
    /// Freed bytes that a client may still reach.
    pub quarantined_bytes: u64,
    /// Freed bytes that are not zero yet.
    pub dirty_bytes: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub free_inodes: u64,
    /// Unlinked inodes that no session has open. Totals count them as free.
    pub idle_inodes: u64,
    /// Number of attached sessions.
    pub sessions: u64,
    /// Number of requests since the start, by name. One-sided operations are none.
    pub requests: BTreeMap<String, u64>,
    /// Time from the arrival of a request to its reply, since the start: `at_once`, and
    /// `after_recalls` if the reply waited for acknowledgements of other sessions.
    pub latencies: BTreeMap<String, Latency>,
    /// Number of held file locks.
    pub locks: u64,
    /// Number of lock requests that wait.
    pub waiting_locks: u64,
    /// Number of requests whose reply waits for acknowledgements of recalls.
    pub waiting_recalls: u64,
    /// The snapshots, with `--persist`.
    pub snapshots: Option<SnapshotStatus>,
    /// The newest scrub since the start.
    pub scrub: Option<ScrubStatus>,
    /// Eviction, with `evict=lru` or `ttl=SECONDS`.
    pub eviction: Option<EvictionStatus>,
}

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    /// Name of the export.
    pub export: String,
    /// Number of the session.
    pub session: u64,
    /// Whether it has a connection.
    pub state: SessionState,
    /// Name of its host, in the words of the client; else the address of the connection.
    pub host: String,
    /// Address of the connection, or `this host`.
    pub address: String,
    /// Process ID on its host.
    pub pid: Option<u32>,
    /// User ID of the process.
    pub user: Option<u32>,
    /// Mount point, in the words of the client.
    pub mount_point: Option<String>,
    /// Program and version, in the words of the client.
    pub program: String,
    /// Provider: shm, tcp or rdma.
    pub provider: String,
    /// Transport and why it is this one, in the words of the client.
    pub transport: Option<String>,
    /// Cache mode: auto, none or writeback.
    pub cache: String,
    /// The session may change nothing.
    pub read_only: bool,
    /// Name of the key.
    pub key: Option<String>,
    /// Mapping of its users, such as `squash=root uid=65534 gid=65534`.
    pub squash: Option<String>,
    /// Time since the connection.
    pub connected_seconds: Option<f64>,
    /// Time since the client renewed its lease.
    pub silent_seconds: Option<f64>,
    /// Time since the loss of the connection.
    pub disconnected_seconds: Option<f64>,
    /// Number of requests, without those for recalls and grants.
    pub requests: u64,
    /// Number of locks and waiting lock requests.
    pub locks: u64,
    /// Recalls that it has not acknowledged.
    pub recalls: u64,
    /// Age of the first of them.
    pub oldest_recall_seconds: Option<f64>,
    /// Requests of other sessions that wait for its acknowledgement.
    pub holds_back: u64,
}

/// Whether a session has a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// It has a connection.
    #[default]
    Connected,
    /// It has lost its connection, and may be resumed.
    Disconnected,
    /// It is a session of a previous server, and may be resumed.
    Restored,
}

/// A lock request that waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockWaitStatus {
    /// Name of the export.
    pub export: String,
    /// Inode of the file.
    pub inode: u64,
    /// The session that waits.
    pub session: u64,
    /// Its process, in the words of the client.
    pub pid: u32,
    /// The request is for an exclusive lock.
    pub exclusive: bool,
    /// `record` (fcntl) or `flock`.
    pub class: String,
    /// First byte of the range.
    pub first: u64,
    /// Last byte of the range.
    pub last: u64,
    /// The session that has the lock; none if the request waits behind another one.
    pub holder_session: Option<u64>,
    /// The process that has the lock.
    pub holder_pid: Option<u32>,
}

/// The snapshots of an export.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotStatus {
    /// Number of the newest complete snapshot.
    pub newest: Option<u64>,
    /// Its age.
    pub age_seconds: Option<f64>,
    /// Its size; 0 if a previous server made it.
    pub size_bytes: u64,
    /// The time that it took; 0 if a previous server made it.
    pub took_seconds: f64,
    /// Time since the start of the snapshot that is being made.
    pub running_seconds: Option<f64>,
    /// Snapshots made since the start.
    pub made: u64,
    /// Snapshots that failed since the start.
    pub failed: u64,
    /// The last failure, unless a snapshot was made since.
    pub failure: Option<String>,
}

/// A scrub of an export.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubStatus {
    /// Time since the last part.
    pub age_seconds: f64,
    /// Time from the start to the last part.
    pub took_seconds: f64,
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Bad blocks among them.
    pub bad_blocks: u64,
    /// It has reached the end of the export.
    pub complete: bool,
}

/// Eviction of an export. Counters count since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvictionStatus {
    /// Files go when space is short, the least recently used file first.
    pub lru: bool,
    /// Time from the last change of a file until it goes.
    pub ttl_seconds: Option<u64>,
    /// Files that went because space or inodes were short.
    pub evicted_files: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Files that went because they were too old.
    pub expired_files: u64,
    /// Their bytes.
    pub expired_bytes: u64,
    /// Requests that found no space, and waited for files to go.
    pub waits: u64,
    /// Those of them that failed with ENOSPC.
    pub failures: u64,
    /// Time since the last file went.
    pub last_seconds: Option<f64>,
    /// Files that may go: no session has them open, and they are not known to be pinned.
    pub candidate_files: u64,
    /// Their bytes.
    pub candidate_bytes: u64,
}

impl ExportStatus {
    /// Returns the number of requests of all kinds.
    pub fn all_requests(&self) -> u64 {
        self.requests.values().sum()
    }
}
