//! Advisory file locks.

use serde::{Deserialize, Serialize};

use crate::Errno;

/// The class of a lock. Locks of different classes never conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockClass {
    /// Byte-range locks of fcntl(2), of processes and of open file descriptions.
    Record,
    /// Whole-file locks of flock(2).
    Flock,
}

/// The operation of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Take a shared lock.
    Shared,
    /// Take an exclusive lock.
    Exclusive,
    /// Release locks.
    Unlock,
}

/// A range of bytes of a file, with both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub first: u64,
    /// Last byte. `u64::MAX` extends the range to the largest possible offset.
    pub last: u64,
}

impl LockRange {
    /// The whole file.
    pub const ALL: LockRange = LockRange { first: 0, last: u64::MAX };

    /// Returns true if the ranges have a byte in common.
    pub fn overlaps(&self, other: &LockRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns the smallest range that contains both ranges.
    pub fn around(&self, other: &LockRange) -> LockRange {
        LockRange { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// A lock that conflicts with a tested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// True for an exclusive lock.
    pub exclusive: bool,
    /// Locked bytes.
    pub range: LockRange,
    /// Process ID of the lock holder; 0 if the lock belongs to another session.
    pub pid: u32,
}

/// State of a file at the time of a lock. It tells the client whether its cached data is still
/// valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    /// Counter that grows when a session opens, resizes or locks the inode and a different session
    /// did so last.
    pub visits: u64,
    /// True if no other session has the inode open.
    pub alone: bool,
}

/// The outcome of a lock request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Ticket of the request.
    pub ticket: u64,
    /// State of the file if the lock was granted. EDEADLK: the holder of a conflicting lock now
    /// waits for this owner. EBADF: the session closed the inode.
    pub outcome: Result<Locked, Errno>,
}
