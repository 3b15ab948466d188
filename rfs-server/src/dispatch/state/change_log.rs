//! The change log of a snapshot: descriptions of all inodes, shard by shard, and the changes that
//! transactions make meanwhile.
//!
//! Both are operations in the format of the log. Replayed in order, they give the state at the
//! moment when recording stops. The size and time that clients wrote to a record are added for
//! each file. Clients write on without the server, so the snapshot reads all records afterwards.
//! Until then, transactions that cut or remove a file record its last size and time (a loss).
//!
//! # Concurrency
//! Any thread that has locked the shards of its inodes. A transaction checks whether recording is
//! on while it holds its shards. So it is either recorded, or complete before they are described.
//! One lock, after all others, held for a copy of the operations.

use std::{
    io,
    sync::atomic::{AtomicU8, Ordering},
};

use parking_lot::Mutex;
use seeded_faults::seeded;

use crate::metadata::{
    attr_table::{ClientFields, Table},
    namespace::inode::{Body, Inode},
};

/// Target size in bytes of a piece of operations. A single transaction may exceed it.
const PIECE_BYTES: usize = 1 << 20;

/// The most bytes of recorded changes that wait in memory. A disk may hang for hours while
/// requests go on.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// A part of a snapshot's state.
#[derive(Debug, Default)]
pub struct SnapshotDelta {
    /// Encoded operations, in order. No operation spans two pieces.
    pub pieces: Vec<Vec<u8>>,
    /// Sizes and times. The last value of a file counts.
    pub written: Vec<ClientFields>,
}

impl SnapshotDelta {
    fn add_ops<'a>(&mut self, ops: &[u8], inodes: impl Iterator<Item = (u64, &'a Inode)>, table: &Table) {
        self.add(ops);
        let files = inodes.filter(|(_, inode)| matches!(inode.body, Body::File(_)));
        self.written.extend(files.map(|(ino, inode)| ClientFields {
            ino,
            size: table.size(inode.slot),
            time: table.write_time(inode.slot),
        }));
    }

    fn add(&mut self, ops: &[u8]) {
        match self.pieces.last_mut() {
            Some(piece) if piece.len() + ops.len() <= PIECE_BYTES => piece.extend_from_slice(ops),
            _ => self.pieces.push(ops.to_vec()),
        }
    }
}

/// Too many changes wait in memory. The snapshot is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {} of changes were waiting to be written", byte_size::show(MAX_WAITING_BYTES as u64))]
pub struct ChangeLogFull;

impl From<ChangeLogFull> for io::Error {
    fn from(full: ChangeLogFull) -> io::Error {
        io::Error::other(full)
    }
}

/// The kind of changes that the change log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Nothing,
    /// All changes of transactions.
    Changes,
    /// The last sizes and times of files that are cut or removed.
    Losses,
}

#[derive(Debug, Default)]
pub(in crate::dispatch) struct ChangeLog {
    enabled: bool,
    phase: AtomicU8,
    recorded: Mutex<RecordedOps>,
}

#[derive(Debug, Default)]
struct RecordedOps {
    delta: SnapshotDelta,
    /// Bytes that transactions have added since the last `take`.
    waiting_bytes: usize,
    /// Whether they exceeded the limit.
    full: bool,
}

impl RecordedOps {
    fn take(&mut self) -> Result<SnapshotDelta, ChangeLogFull> {
        let RecordedOps { delta, full, .. } = std::mem::take(self);
        self.full = full;
        if full { Err(ChangeLogFull) } else { Ok(delta) }
    }
}

impl ChangeLog {
    /// Enables snapshots: transactions note their changes from now on.
    pub(in crate::dispatch) fn enable(&mut self) {
        self.enabled = true;
    }

    pub(in crate::dispatch) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the change log, if it records the changes of transactions.
    #[inline]
    pub(in crate::dispatch) fn recording(&self) -> Option<&ChangeLog> {
        // A thread that locks a shard after its description acquires the lock from the thread that
        // has started the recording.
        (self.phase.load(Ordering::Acquire) == Phase::Changes as u8).then_some(self)
    }

    /// Returns whether transactions have to remember the losses of records: a transaction may end
    /// after the recording stops.
    #[inline]
    pub(in crate::dispatch) fn is_active(&self) -> bool {
        self.phase.load(Ordering::Acquire) != Phase::Nothing as u8
    }

    /// Starts the recording of a snapshot. Only one snapshot runs at a time.
    pub(in crate::dispatch) fn start(&self) -> Recording<'_> {
        *self.recorded.lock() = RecordedOps::default();
        self.phase.store(Phase::Changes as u8, Ordering::Release);
        Recording(self)
    }

    /// Adds the operations of a transaction on these inodes. Does nothing after the recording has
    /// stopped. Stops the recording if too many changes wait. Returns true if the change is part of
    /// the snapshot.
    pub(in crate::dispatch) fn record<'a>(
        &self,
        ops: &[u8],
        inodes: impl Iterator<Item = (u64, &'a Inode)>,
        table: &Table,
    ) -> bool {
        self.add_in(Phase::Changes, |delta| {
            let written = delta.written.len();
            delta.add_ops(ops, inodes, table);
            ops.len() + (delta.written.len() - written) * size_of::<ClientFields>()
        })
    }

    /// Adds the losses of a transaction: sizes and times of files before it cut or removed them.
    pub(in crate::dispatch) fn record_losses(&self, lost: &[ClientFields]) {
        seeded!(LossUntold => return);
        self.add_in(Phase::Losses, |delta| {
            delta.written.extend_from_slice(lost);
            size_of_val(lost)
        });
    }

    /// Calls `add`, which adds changes and returns their size in bytes. Returns false in another
    /// phase.
    fn add_in(&self, phase: Phase, add: impl FnOnce(&mut SnapshotDelta) -> usize) -> bool {
        let mut recorded = self.recorded.lock();
        if self.phase.load(Ordering::Relaxed) != phase as u8 {
            return false;
        }
        let bytes = add(&mut recorded.delta);
        recorded.waiting_bytes += bytes;
        if recorded.waiting_bytes > MAX_WAITING_BYTES {
            self.phase.store(Phase::Nothing as u8, Ordering::Relaxed);
            *recorded = RecordedOps { full: true, ..RecordedOps::default() };
            drop(recorded);
            log::error!("snapshot aborted: {ChangeLogFull}");
        }
        true
    }
}

/// A recording. Dropping it stops the recording.
#[derive(Debug)]
pub(in crate::dispatch) struct Recording<'a>(&'a ChangeLog);

impl Recording<'_> {
    /// Adds operations that describe these inodes.
    pub(in crate::dispatch) fn describe<'a>(
        &self,
        ops: &[u8],
        inodes: impl Iterator<Item = (u64, &'a Inode)>,
        table: &Table,
    ) {
        let mut recorded = self.0.recorded.lock();
        if !recorded.full {
            recorded.delta.add_ops(ops, inodes, table);
        }
    }

    /// Returns the operations since the last call.
    pub(in crate::dispatch) fn take(&self) -> Result<SnapshotDelta, ChangeLogFull> {
        self.0.recorded.lock().take()
    }

    /// Stops recording changes and returns the last ones. The recorded state is the state at this
    /// moment. From now on losses are recorded.
    pub(in crate::dispatch) fn stop(&self) -> Result<SnapshotDelta, ChangeLogFull> {
        let mut recorded = self.0.recorded.lock();
        let delta = recorded.take()?;
        self.0.phase.store(Phase::Losses as u8, Ordering::Relaxed);
        Ok(delta)
    }

    /// Returns the losses since then. The first loss of each file comes last.
    pub(in crate::dispatch) fn losses(self) -> Result<Vec<ClientFields>, ChangeLogFull> {
        let mut lost = self.take()?.written;
        lost.reverse();
        Ok(lost)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let mut recorded = self.0.recorded.lock();
        self.0.phase.store(Phase::Nothing as u8, Ordering::Relaxed);
        *recorded = RecordedOps::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rdmabox::Memory;
    use rfs_proto::record;

    use super::*;

    fn table() -> Table {
        Table::new(Arc::new(Memory::private(record::LEN).unwrap()))
    }

    fn say(log: &ChangeLog, bytes: usize) {
        if let Some(log) = log.recording() {
            log.record(&vec![1; bytes], std::iter::empty(), &table());
        }
    }

    fn len(delta: &SnapshotDelta) -> usize {
        delta.pieces.iter().map(Vec::len).sum()
    }

    /// Memory is bounded while a disk hangs.
    #[test]
    fn recorded_changes_are_bounded() {
        let log = ChangeLog::default();
        let recording = log.start();
        say(&log, MAX_WAITING_BYTES);
        // Taken operations do not count, and neither do descriptions: those are bounded by the
        // inodes of a shard.
        assert_eq!(len(&recording.take().unwrap()), MAX_WAITING_BYTES);
        recording.describe(&vec![2; MAX_WAITING_BYTES], std::iter::empty(), &table());
        say(&log, MAX_WAITING_BYTES);
        assert!(log.recording().is_some());
        say(&log, 1);
        assert!(log.recording().is_none());
        assert_eq!(len(&log.recorded.lock().delta), 0);
        recording.describe(&[2], std::iter::empty(), &table());
        assert!(matches!(recording.take(), Err(ChangeLogFull)));
        assert!(matches!(recording.take(), Err(ChangeLogFull)));
        assert!(matches!(recording.stop(), Err(ChangeLogFull)));
        // The next recording is independent.
        let recording = log.start();
        say(&log, 5);
        assert_eq!(len(&recording.stop().unwrap()), 5);
        assert!(log.is_active());
        drop(recording);
        assert!(!log.is_active());
    }

    #[test]
    fn the_first_loss_comes_last_and_losses_before_the_stop_do_not_count() {
        let written = |ino, size| ClientFields { ino, size, time: 1 };
        let log = ChangeLog::default();
        log.record_losses(&[written(1, 1)]);
        let recording = log.start();
        log.record_losses(&[written(1, 2)]);
        assert_eq!(recording.stop().unwrap().written, []);
        say(&log, 5);
        log.record_losses(&[written(1, 3), written(2, 4)]);
        log.record_losses(&[written(1, 5)]);
        assert_eq!(recording.losses(), Ok(vec![written(1, 5), written(2, 4), written(1, 3)]));
        assert!(!log.is_active());
    }

    /// Nothing takes the operations any more.
    #[test]
    fn it_stops_when_its_thread_panics() {
        let log = ChangeLog::default();
        let ends = std::panic::AssertUnwindSafe(|| {
            let _recording = log.start();
            say(&log, 5);
            panic!("as a thread that has failed");
        });
        std::panic::catch_unwind(ends).unwrap_err();
        assert!(log.recording().is_none());
        assert_eq!(len(&log.recorded.lock().delta), 0);
    }
}
