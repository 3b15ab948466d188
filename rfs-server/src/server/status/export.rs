//! The status of an export.

use std::collections::BTreeMap;

use rfs_status::latency::Latency;
use serde::{Deserialize, Serialize};

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
