//! Space and slots that a transaction gives up.
//!
//! # Concurrency
//! Plain values.

use crate::space::alloc::range::Range;

/// Space and slots that a transaction gives up. They are released when the transaction's changes
/// are logged: until then the next server would take them for used.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct FreedSpace {
    pub(in crate::dispatch) space: Vec<Ranges>,
    pub(in crate::dispatch) slots: Vec<u32>,
}

/// Space that an inode gave up.
#[derive(Debug)]
pub(in crate::dispatch) struct Ranges {
    /// The inode, and the first generation of its layout without the ranges.
    pub(in crate::dispatch) of: (u64, u64),
    pub(in crate::dispatch) ranges: Vec<Range>,
    /// The sessions that can still reach the ranges.
    pub(in crate::dispatch) holders: Vec<u64>,
}

impl FreedSpace {
    /// Returns the space that sessions can still reach: inode, ranges, sessions.
    pub(in crate::dispatch) fn reachable(&self) -> impl Iterator<Item = (u64, &[Range], &[u64])> {
        let all = self.space.iter().map(|given| (given.of.0, &given.ranges[..], &given.holders[..]));
        all.filter(|(_, ranges, holders)| !ranges.is_empty() && !holders.is_empty())
    }
}
