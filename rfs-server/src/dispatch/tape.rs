//! What a snapshot is told while the inodes are described to it, shard by shard: the descriptions, and what steps change meanwhile.
//!
//! Both are operations of the log, in the order in which the locks of shards let them come. Together they say how everything is at the moment
//! at which the tape is stopped. What clients write of a record, size and time, is told besides for each file that is in the words.
//!
//! Clients go on writing past the server, so that all records are looked at afterwards. Until that is over steps tell of files that they
//! cut or remove how large those had been.
//!
//! Threading: any thread that has the shards of what it tells of. A step looks whether the tape rolls while it has its shards: so it
//! is either told of, or over before they are described. One lock, after all others, for the length of a copy.

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

/// Bytes of operations that are kept together, unless one step has more.
const PIECE: usize = 1 << 20;

/// Bytes that are kept of what steps tell between two looks of whoever writes it down: a disk may hang for hours, and requests go on.
const MOST: usize = 64 << 20;

/// What clients had written of a file's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The inode.
    pub ino: u64,
    /// Its size.
    pub size: u64,
    /// The time of the last write, 0 for none since the server set mtime.
    pub time: i64,
}

/// What was said.
#[derive(Debug, Default)]
pub struct Told {
    /// Operations, encoded as in the log: whole ones in each piece, to be read in order.
    pub pieces: Vec<Vec<u8>>,
    /// Sizes and times. The last one of a file counts.
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

/// More was changed than is kept in memory until it is taken: the snapshot is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {} was changed while what was there was being written", size::show(MOST as u64))]
pub struct TapeFull;

impl From<TapeFull> for io::Error {
    fn from(full: TapeFull) -> io::Error {
        io::Error::other(full)
    }
}

/// What a tape is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Nothing,
    /// All that steps change.
    Steps,
    /// What they lose of records.
    Losses,
}

/// The tape.
#[derive(Debug, Default)]
pub(super) struct Tape {
    there: bool,
    /// As a [`Phase`].
    phase: AtomicU8,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    told: Told,
    /// Bytes that steps have told since this was taken last.
    of_steps: usize,
    /// They were too many.
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
    /// There is one from now on: steps note what they change.
    pub(super) fn put_in(&mut self) {
        self.there = true;
    }

    pub(super) fn is_there(&self) -> bool {
        self.there
    }

    /// The tape, if it is to be told of a step that is ending.
    #[inline]
    pub(super) fn rolling(&self) -> Option<&Tape> {
        // Whoever comes to a shard after it was described has its lock from the thread that had started the tape before.
        (self.phase.load(Ordering::Acquire) == Phase::Steps as u8).then_some(self)
    }

    /// Whether a step has to remember what it loses of records: its end may come after the moment.
    #[inline]
    pub(super) fn is_in_use(&self) -> bool {
        self.phase.load(Ordering::Acquire) != Phase::Nothing as u8
    }

    /// Starts it, for one snapshot at a time.
    pub(super) fn start(&self) -> Recording<'_> {
        *self.said.lock() = Said::default();
        self.phase.store(Phase::Steps as u8, Ordering::Release);
        Recording(self)
    }

    /// Operations of a step about inodes, which are as they say. Nothing is added when the tape has been stopped. It stops by itself when
    /// nobody takes what steps tell it. True if that was before the moment.
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

    /// A step that is over had cut or removed these files, whose records were so before.
    pub(super) fn lose(&self, lost: &[Written]) {
        if seeded(Fault::LossUntold) {
            return;
        }
        self.tell(Phase::Losses, |told| {
            told.written.extend_from_slice(lost);
            size_of_val(lost)
        });
    }

    /// Is told something by `tell`, which says how many bytes that is. False if this is not the time for it.
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
            log::error!("the snapshot is given up: {TapeFull}");
        }
        true
    }
}

/// A tape that has been started. It is stopped when this goes, in whatever way.
#[derive(Debug)]
pub(super) struct Recording<'a>(&'a Tape);

impl Recording<'_> {
    /// Operations that describe inodes, which are as they say.
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

    /// What was said since this was asked last.
    pub(super) fn take(&self) -> Result<Told, TapeFull> {
        self.0.said.lock().take()
    }

    /// What was said last: that is how things are at this moment. From now on it is told of losses.
    pub(super) fn stop(&self) -> Result<Told, TapeFull> {
        let mut said = self.0.said.lock();
        let told = said.take()?;
        self.0.phase.store(Phase::Losses as u8, Ordering::Relaxed);
        Ok(told)
    }

    /// What files had that were cut or removed since, the first loss of each last.
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

    /// Memory for the changes of hours, while a disk hangs.
    #[test]
    fn what_nobody_takes_has_an_end() {
        let tape = Tape::default();
        let recording = tape.start();
        say(&tape, MOST);
        // What is taken is over, and descriptions are as long as there are inodes in a shard.
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
        // The next one is another one.
        let recording = tape.start();
        say(&tape, 5);
        assert_eq!(len(&recording.stop().unwrap()), 5);
        assert!(tape.is_in_use());
        drop(recording);
        assert!(!tape.is_in_use());
    }

    #[test]
    fn of_losses_the_first_one_comes_last_and_those_before_the_moment_do_not_count() {
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

    /// Nobody takes anything from it any more.
    #[test]
    fn it_stops_with_whoever_has_started_it() {
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
