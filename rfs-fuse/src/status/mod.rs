//! The status of a mount: its session, requests of the kernel and of the client, and waiting
//! operations.
//!
//! [`MountStatus`] is a plain value. `collect` makes it from a running mount, `table` renders it
//! for people, and `metrics` for Prometheus. `rfs-fuse status --json` prints its JSON form: names
//! of fields stay, new ones may come. `command` is `rfs-fuse status`, and `answers` the side of the
//! mount. `trace` is `rfs-fuse trace`. `access` is for programs that use the server themselves.

mod access;
mod answers;
mod collect;
pub(crate) mod command;
mod metrics;
mod table;
pub(crate) mod trace;

use std::collections::BTreeMap;

use rfs_status::{latency::Latency, logging::LogCounts, process::ProcessStatus};
use serde::{Deserialize, Serialize};

pub(crate) use self::{
    access::AccessOffer,
    answers::Answers,
    collect::{MountFacts, ObservedMount, StatusSource},
};

/// The status of a mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MountStatus {
    /// Version of the program.
    pub(crate) version: String,
    /// Version of the protocol.
    pub(crate) protocol: u32,
    /// Memory, threads and descriptors.
    pub(crate) process: ProcessStatus,
    /// Directory of the mount.
    pub(crate) mount_point: String,
    /// The server's address, as on the command line.
    pub(crate) source: String,
    /// Device number of the mount, `major:minor`.
    pub(crate) device: String,
    /// No change is possible through the mount.
    pub(crate) read_only: bool,
    /// Cache mode: auto, none or writeback.
    pub(crate) cache: String,
    /// Requests of the kernel arrive over io_uring.
    pub(crate) io_uring: bool,
    /// Requests of the kernel that have no reply yet; none if the kernel does not tell.
    pub(crate) waiting_requests: Option<u64>,
    /// Number of requests of the kernel since the start, by kind.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Uses of the caches of the mount since the start, by cache.
    pub(crate) caches: BTreeMap<String, CacheStatus>,
    /// Inodes that the kernel knows.
    pub(crate) known_inodes: u64,
    /// The session with the server.
    pub(crate) session: Option<SessionStatus>,
    /// Lock requests that wait, up to 100, the oldest first.
    pub(crate) lock_waits: Vec<LockWaitStatus>,
    /// Warnings and errors since the start.
    pub(crate) log: LogCounts,
    /// Address of the metrics, if they are served.
    pub(crate) metrics_address: Option<String>,
    /// Why the mount has not answered. All but the mount point and the device is empty then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// How often a cache of a mount was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CacheStatus {
    /// Times that the cache answered.
    pub(crate) hits: u64,
    /// Times that it could not.
    pub(crate) misses: u64,
}

/// The session of a mount with its server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SessionStatus {
    /// Whether there is a session.
    pub(crate) state: SessionState,
    /// Why no session can follow the lost one, if the server is the cause.
    pub(crate) final_loss: Option<String>,
    /// Time since the loss of the session, while the mount reconnects.
    pub(crate) lost_seconds: Option<f64>,
    /// Transport, and why it is this one.
    pub(crate) transport: String,
    /// The server's memory is mapped.
    pub(crate) mapped: bool,
    /// The export has checksums.
    pub(crate) checksums: bool,
    /// How often the mount has reconnected.
    pub(crate) reconnects: u64,
    /// How often the server has lost the state of the mount.
    pub(crate) losses: u64,
    /// Counters of the session by name, since the last reconnect.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Latencies of the session by kind, since the last reconnect.
    pub(crate) latencies: BTreeMap<String, Latency>,
}

/// Whether a mount has a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SessionState {
    /// It has one.
    #[default]
    Connected,
    /// It has lost its session, and makes another one.
    Reconnecting,
    /// It has lost its session for good: every operation fails.
    Ended,
}

/// A lock request that waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LockWaitStatus {
    /// Inode of the file.
    pub(crate) inode: u64,
    /// The process that waits.
    pub(crate) pid: u32,
    /// `record` (fcntl) or `flock`.
    pub(crate) class: String,
    /// The request is for an exclusive lock.
    pub(crate) exclusive: bool,
    /// Time since the request.
    pub(crate) age_seconds: f64,
}
