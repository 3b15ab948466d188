//! Quarantined space of a previous server, and holders of quarantined space that are no sessions.
//!
//! # Concurrency
//! Plain values.

use super::alloc::range::Range;

/// Quarantine holder for the sessions of previous servers that do not reconnect: one holder for all
/// of them. No session has this number.
pub(crate) const ABANDONED_SESSIONS: u64 = u64::MAX;

/// Quarantine holder of the snapshot that is being copied. No session has this number.
pub(super) const SNAPSHOT: u64 = u64::MAX - 1;

/// Quarantine holder that never releases: for a change that is missing in the log. No session has
/// this number.
pub(crate) const UNLOGGED: u64 = u64::MAX - 2;

/// Returns the quarantine holder of space that could not be zeroed, because its store could not be
/// reached. No session has this number.
pub(super) fn unreachable(store: u16) -> u64 {
    UNLOGGED - 1 - u64::from(store)
}

/// Returns the quarantine holder of space of a store that a client may still write to, although it
/// has given the space up. No session has this number.
pub(super) fn in_doubt(store: u16) -> u64 {
    unreachable(u16::MAX) - 1 - u64::from(store)
}

/// Space that an inode released while a session could still reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedRange {
    /// The bytes of the arena.
    pub range: Range,
    /// The inode that released them.
    pub ino: u64,
    /// Sessions that can reach the range while they have the inode open.
    pub holders: Vec<u64>,
}
