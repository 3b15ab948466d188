//! The record of the snapshots of an export, for the status of a server.
//!
//! # Concurrency
//! The snapshot thread writes, any thread reads; one lock, held briefly.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

/// The snapshots of an export.
#[derive(Clone, Debug, Default)]
pub struct SnapshotRecord(Arc<Mutex<SnapshotHistory>>);

/// The record of the snapshots of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHistory {
    /// The newest complete snapshot, of this server or of a previous one.
    pub newest: Option<NewestSnapshot>,
    /// Start of the snapshot that is being made.
    pub running_since: Option<SystemTime>,
    /// Number of snapshots that this server has made.
    pub made: u64,
    /// Number of snapshots that failed.
    pub failed: u64,
    /// The last failure, unless a snapshot was made since.
    pub failure: Option<String>,
}

/// A complete snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestSnapshot {
    /// Its number.
    pub number: u64,
    /// The moment that it shows, or of its begin.
    pub time: SystemTime,
    /// Its size in bytes; 0 for a snapshot of a previous server.
    pub bytes: u64,
    /// The time that it took; 0 for a snapshot of a previous server.
    pub took: Duration,
}

impl SnapshotRecord {
    /// Returns the record of an export whose newest snapshot, of a previous server, has this number
    /// and time in nanoseconds since 1970.
    pub fn of_previous(newest: Option<(u64, i64)>) -> SnapshotRecord {
        let newest = newest.map(|(number, time)| {
            let time = UNIX_EPOCH + Duration::from_nanos(u64::try_from(time).unwrap_or(0));
            NewestSnapshot { number, time, bytes: 0, took: Duration::ZERO }
        });
        SnapshotRecord(Arc::new(Mutex::new(SnapshotHistory { newest, ..SnapshotHistory::default() })))
    }

    /// Returns the current history.
    pub fn history(&self) -> SnapshotHistory {
        self.0.lock().clone()
    }

    /// Records the begin of a snapshot.
    pub(super) fn begin(&self) {
        self.0.lock().running_since = Some(SystemTime::now());
    }

    /// Records that the running snapshot is complete.
    pub(super) fn complete(&self, number: u64, bytes: u64) {
        let mut history = self.0.lock();
        let time = history.running_since.take().unwrap_or_else(SystemTime::now);
        let took = time.elapsed().unwrap_or_default();
        history.newest = Some(NewestSnapshot { number, time, bytes, took });
        history.made += 1;
        history.failure = None;
    }

    /// Records that the running snapshot was aborted, or failed for a reason.
    pub(super) fn give_up(&self, reason: Option<String>) {
        let mut history = self.0.lock();
        history.running_since = None;
        if let Some(reason) = reason {
            history.failed += 1;
            history.failure = Some(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_lasts_until_the_next_snapshot() {
        let record = SnapshotRecord::of_previous(Some((7, 1_000_000_000)));
        let newest = record.history().newest.unwrap();
        assert_eq!((newest.number, newest.time), (7, UNIX_EPOCH + Duration::from_secs(1)));
        record.begin();
        assert!(record.history().running_since.is_some());
        record.give_up(Some("the disk is full".into()));
        let history = record.history();
        assert_eq!((history.failed, history.failure.as_deref()), (1, Some("the disk is full")));
        assert_eq!((history.newest.unwrap().number, history.running_since), (7, None));
        record.begin();
        record.give_up(None);
        assert_eq!(record.history().failed, 1);
        record.begin();
        record.complete(8, 4096);
        let history = record.history();
        assert_eq!((history.made, history.failure), (1, None));
        assert_eq!(history.newest.map(|newest| (newest.number, newest.bytes)), Some((8, 4096)));
    }
}
