//! What a snapshot is told while the inodes are described to it, shard by shard: the descriptions, and what steps change meanwhile.
//!
//! Both are operations of the log, in the order in which the locks of shards let them come. Together they say how everything is at the moment
//! at which the tape is stopped. What clients write of a record, size and time, is told besides for each file that is in the words.
//!
//! Threading: any thread that has the shards of what it tells of. A step looks whether the tape rolls while it has its shards: so it
//! is either told of, or over before they are described. One lock, after all others, for the length of a copy.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::{
    namespace::{Body, Inode},
    table::Table,
};

/// Bytes of operations that are kept together, unless one step has more.
const PIECE: usize = 1 << 20;

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
    fn add(&mut self, ops: &[u8]) {
        match self.pieces.last_mut() {
            Some(piece) if piece.len() + ops.len() <= PIECE => piece.extend_from_slice(ops),
            _ => self.pieces.push(ops.to_vec()),
        }
    }
}

/// The tape.
#[derive(Debug, Default)]
pub(super) struct Tape {
    there: bool,
    rolls: AtomicBool,
    said: Mutex<Told>,
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
        self.rolls.load(Ordering::Acquire).then_some(self)
    }

    /// Starts it, for one snapshot at a time.
    pub(super) fn start(&self) {
        *self.said.lock() = Told::default();
        self.rolls.store(true, Ordering::Release);
    }

    /// Operations about inodes, which are as they say. Nothing is added when the tape has been stopped.
    pub(super) fn say<'a>(&self, ops: &[u8], inodes: impl Iterator<Item = (u64, &'a Inode)>, table: &Table) {
        let mut said = self.said.lock();
        if !self.rolls.load(Ordering::Relaxed) {
            return;
        }
        said.add(ops);
        let files = inodes.filter(|(_, inode)| matches!(inode.body, Body::File(_)));
        said.written.extend(files.map(|(ino, inode)| Written {
            ino,
            size: table.size(inode.slot),
            time: table.write_time(inode.slot),
        }));
    }

    /// What was said since this was asked last.
    pub(super) fn take(&self) -> Told {
        std::mem::take(&mut *self.said.lock())
    }

    /// Stops it. What it has told with this is how things are at this moment.
    pub(super) fn stop(&self) -> Told {
        let mut said = self.said.lock();
        self.rolls.store(false, Ordering::Relaxed);
        std::mem::take(&mut *said)
    }
}
