//! The status of a server: the memory that it lends, its clients, and waiting operations.
//!
//! [`ServerStatus`] is a plain value. `collect` makes it from a running server, `table` renders it
//! for people, and `metrics` for Prometheus. `rfs-server status --json` prints its JSON form: names
//! of fields stay, new ones may come. No I/O, no locks, no clock.

mod collect;
mod collect_pool;
mod export;
mod metrics;
pub mod pool;
mod session;
mod table;

use std::collections::BTreeMap;

use rfs_status::{logging::LogCounts, process::ProcessStatus};
use serde::{Deserialize, Serialize};

pub(super) use collect::ObservedExport;
pub use collect::{NO_POOL, StatusSource};
pub use export::{EvictionStatus, ExportStatus, ScrubStatus, SnapshotStatus};
pub use pool::PoolStatus;
pub use session::{LockWaitStatus, SessionState, SessionStatus};

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
