//! The size of the server's own arena. Withdrawn ranges are zero, and no space of the export.
//!
//! # Concurrency
//! None; the caller holds a lock.

use rfs_proto::DataPlace;

use super::{Arena, range::Range};

/// Use of the server's own arena, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnSpace {
    /// Bytes that are not withdrawn.
    pub len: u64,
    /// Free and zero.
    pub clean: u64,
    /// Free, to be zeroed.
    pub dirty: u64,
    /// Bytes of the arena and of stores that are being zeroed.
    pub zeroing: u64,
    /// Free, but sessions or a snapshot can reach it.
    pub quarantined: u64,
}

impl Arena {
    /// Returns the size of the own arena without withdrawn ranges.
    pub fn own_len(&self) -> u64 {
        self.len - self.clean.lent().map(|(_, len, ..)| len).sum::<u64>()
    }

    /// Returns the use of the own arena.
    pub fn own_space(&self) -> OwnSpace {
        let is_own = |range: &Range| DataPlace::from_number(range.start).store() == 0;
        let sum = |sum: u64, range: Range| sum + range.len;
        let held = self.quarantine.values().flat_map(|list| list.values()).map(|entry| entry.range);
        OwnSpace {
            len: self.own_len(),
            clean: self.clean.own_total(),
            dirty: self.dirty.iter().copied().filter(is_own).fold(0, sum),
            zeroing: self.zeroing_bytes(),
            quarantined: held.filter(is_own).fold(0, sum),
        }
    }

    /// Withdraws clean bytes of the own arena, the highest first. Returns their ranges; `None`,
    /// without a change, if there are fewer.
    pub fn withdraw(&mut self, bytes: u64) -> Option<Vec<Range>> {
        if bytes > self.clean.own_total() {
            return None;
        }
        let taken = self.clean.take_highest(bytes);
        taken.iter().for_each(|&range| self.withdrawn.insert(range));
        self.len -= bytes;
        Some(taken)
    }

    /// Returns the lowest withdrawn ranges with this many bytes; `None` if there are fewer.
    pub fn lowest_withdrawn(&self, bytes: u64) -> Option<Vec<Range>> {
        (bytes <= self.withdrawn.total()).then(|| self.withdrawn.lowest(bytes))
    }

    /// Makes withdrawn ranges space of the export again.
    pub fn give_back(&mut self, ranges: &[Range]) {
        for &range in ranges {
            self.withdrawn.remove(range);
            self.clean.insert(range);
            self.len += range.len;
        }
    }

    /// Returns the parts of a range of the own arena that are not withdrawn, in order.
    pub fn given(&self, range: Range) -> Vec<Range> {
        self.withdrawn.gaps(range)
    }
}
