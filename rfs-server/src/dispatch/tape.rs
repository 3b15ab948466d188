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
use rdmabox::size;
use seeded_faults::{Fault, seeded};

use crate::{
    namespace::{Body, Inode},
    table::Table,
};

/// Target size in bytes of a piece of operations. A single transaction may exceed it.
const PIECE: usize = 1 << 20;

/// The most bytes of recorded changes that wait in memory. A disk may hang for hours while
/// requests go on.
const MOST: usize = 64 << 20;

/// The size and time that clients had written to a file's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The inode.
    pub ino: u64,
    /// Its size.
    pub size: u64,
    /// The time of the last write, in ns; 0 for no write since the server has set mtime.
    pub time: i64,
}

/// A part of a snapshot's state.
#[derive(Debug, Default)]
pub struct Told {
    /// Encoded operations, in order. No operation spans two pieces.
    pub pieces: Vec<Vec<u8>>,
    /// Sizes and times. The last value of a file counts.
    pub written: Vec<Written>,
}

impl Told {
    fn tell<'a>(&mut self, ops: &[u8], inodes: impl Iterator<Item = (u64, &'a Inode)>, table: &Table) {
        self.add(ops);
        let files = inodes.filter(|(_, inode)| matches!(inode.body, Body::File(_)));
        self.written.extend(files.map(|(ino, inode)| Written {
            ino,
            size: table.size(inode.slot),
            time: table.write_time(inode.slot),
        }));
    }

    fn add(&mut self, ops: &[u8]) {
        match self.pieces.last_mut() {
            Some(piece) if piece.len() + ops.len() <= PIECE => piece.extend_from_slice(ops),
            _ => self.pieces.push(ops.to_vec()),
        }
    }
}

/// Too many changes wait in memory. The snapshot is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {} of changes were waiting to be written", size::show(MOST as u64))]
pub struct TapeFull;

impl From<TapeFull> for io::Error {
    fn from(full: TapeFull) -> io::Error {
        io::Error::other(full)
    }
}

/// The kind of changes that the change log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Nothing,
    /// All changes of transactions.
    Steps,
    /// The last sizes and times of files that are cut or removed.
    Losses,
}

/// The change log.
#[derive(Debug, Default)]
pub(super) struct Tape {
    there: bool,
    /// A [`Phase`].
    phase: AtomicU8,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    told: Told,
    /// Bytes that transactions have added since the last `take`.
    of_steps: usize,
    /// Whether they exceeded the limit.
    full: bool,
}

impl Said {
    fn take(&mut self) -> Result<Told, TapeFull> {
        let Said { told, full, .. } = std::mem::take(self);
        self.full = full;
        if full { Err(TapeFull) } else { Ok(told) }
    }
}

impl Tape {
    /// Enables snapshots: transactions note their changes from now on.
    pub(super) fn put_in(&mut self) {
        self.there = true;
    }

    pub(super) fn is_there(&self) -> bool {
        self.there
    }

    /// Returns the change log, if it records the changes of transactions.
    #[inline]
    pub(super) fn rolling(&self) -> Option<&Tape> {
        // A thread that locks a shard after its description acquires the lock from the thread that
        // has started the recording.
        (self.phase.load(Ordering::Acquire) == Phase::Steps as u8).then_some(self)
    }

    /// Returns whether transactions have to remember the losses of records: a transaction may end
    /// after the recording stops.
    #[inline]
    pub(super) fn is_in_use(&self) -> bool {
        self.phase.load(Ordering::Acquire) != Phase::Nothing as u8
    }

    /// Starts the recording of a snapshot. Only one snapshot runs at a time.
    pub(super) fn start(&self) -> Recording<'_> {
        *self.said.lock() = Said::default();
        self.phase.store(Phase::Steps as u8, Ordering::Release);
        Recording(self)
    }

    /// Adds the operations of a transaction on these inodes. Does nothing after the recording has
    /// stopped. Stops the recording if too many changes wait. Returns true if the change is part of
    /// the snapshot.
    pub(super) fn say<'a>(
        &self,
        ops: &[u8],
        inodes: impl Iterator<Item = (u64, &'a Inode)>,
        table: &Table,
    ) -> bool {
        self.tell(Phase::Steps, |told| {
            let written = told.written.len();
            told.tell(ops, inodes, table);
            ops.len() + (told.written.len() - written) * size_of::<Written>()
        })
    }

    /// Adds the losses of a transaction: sizes and times of files before it cut or removed them.
    pub(super) fn lose(&self, lost: &[Written]) {
        if seeded(Fault::LossUntold) {
            return;
        }
        self.tell(Phase::Losses, |told| {
            told.written.extend_from_slice(lost);
            size_of_val(lost)
        });
    }

    /// Calls `tell` to add changes; it returns their size in bytes. Returns false in another phase.
    fn tell(&self, phase: Phase, tell: impl FnOnce(&mut Told) -> usize) -> bool {
        let mut said = self.said.lock();
        if self.phase.load(Ordering::Relaxed) != phase as u8 {
            return false;
        }
        let bytes = tell(&mut said.told);
        said.of_steps += bytes;
        if said.of_steps > MOST {
            self.phase.store(Phase::Nothing as u8, Ordering::Relaxed);
            *said = Said { full: true, ..Said::default() };
            drop(said);
            log::error!("snapshot aborted: {TapeFull}");
        }
        true
    }
}

/// A recording. Dropping it stops the recording.
#[derive(Debug)]
pub(super) struct Recording<'a>(&'a Tape);

impl Recording<'_> {
    /// Adds operations that describe these inodes.
    pub(super) fn describe<'a>(
        &self,
        ops: &[u8],
        inodes: impl Iterator<Item = (u64, &'a Inode)>,
        table: &Table,
    ) {
        let mut said = self.0.said.lock();
        if !said.full {
            said.told.tell(ops, inodes, table);
        }
    }

    /// Returns the operations since the last call.
    pub(super) fn take(&self) -> Result<Told, TapeFull> {
        self.0.said.lock().take()
    }

    /// Stops recording changes and returns the last ones. The recorded state is the state at this
    /// moment. From now on losses are recorded.
    pub(super) fn stop(&self) -> Result<Told, TapeFull> {
        let mut said = self.0.said.lock();
        let told = said.take()?;
        self.0.phase.store(Phase::Losses as u8, Ordering::Relaxed);
        Ok(told)
    }

    /// Returns the losses since then. The first loss of each file comes last.
    pub(super) fn losses(self) -> Result<Vec<Written>, TapeFull> {
        let mut lost = self.take()?.written;
        lost.reverse();
        Ok(lost)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let mut said = self.0.said.lock();
        self.0.phase.store(Phase::Nothing as u8, Ordering::Relaxed);
        *said = Said::default();
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

    fn say(tape: &Tape, bytes: usize) {
        if let Some(tape) = tape.rolling() {
            tape.say(&vec![1; bytes], std::iter::empty(), &table());
        }
    }

    fn len(told: &Told) -> usize {
        told.pieces.iter().map(Vec::len).sum()
    }

    /// Memory is bounded while a disk hangs.
    #[test]
    fn recorded_changes_are_bounded() {
        let tape = Tape::default();
        let recording = tape.start();
        say(&tape, MOST);
        // Taken operations do not count, and neither do descriptions: those are bounded by the
        // inodes of a shard.
        assert_eq!(len(&recording.take().unwrap()), MOST);
        recording.describe(&vec![2; MOST], std::iter::empty(), &table());
        say(&tape, MOST);
        assert!(tape.rolling().is_some());
        say(&tape, 1);
        assert!(tape.rolling().is_none());
        assert_eq!(len(&tape.said.lock().told), 0);
        recording.describe(&[2], std::iter::empty(), &table());
        assert!(matches!(recording.take(), Err(TapeFull)));
        assert!(matches!(recording.take(), Err(TapeFull)));
        assert!(matches!(recording.stop(), Err(TapeFull)));
        // The next recording is independent.
        let recording = tape.start();
        say(&tape, 5);
        assert_eq!(len(&recording.stop().unwrap()), 5);
        assert!(tape.is_in_use());
        drop(recording);
        assert!(!tape.is_in_use());
    }

    #[test]
    fn the_first_loss_comes_last_and_losses_before_the_stop_do_not_count() {
        let written = |ino, size| Written { ino, size, time: 1 };
        let tape = Tape::default();
        tape.lose(&[written(1, 1)]);
        let recording = tape.start();
        tape.lose(&[written(1, 2)]);
        assert_eq!(recording.stop().unwrap().written, []);
        say(&tape, 5);
        tape.lose(&[written(1, 3), written(2, 4)]);
        tape.lose(&[written(1, 5)]);
        assert_eq!(recording.losses(), Ok(vec![written(1, 5), written(2, 4), written(1, 3)]));
        assert!(!tape.is_in_use());
    }

    /// Nothing takes the operations any more.
    #[test]
    fn it_stops_when_its_thread_panics() {
        let tape = Tape::default();
        let ends = std::panic::AssertUnwindSafe(|| {
            let _recording = tape.start();
            say(&tape, 5);
            panic!("as a thread that has failed");
        });
        std::panic::catch_unwind(ends).unwrap_err();
        assert!(tape.rolling().is_none());
        assert_eq!(len(&tape.said.lock().told), 0);
    }
}
