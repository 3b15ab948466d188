//! Locks on files.

use serde::{Deserialize, Serialize};

use crate::Errno;

/// The two kinds of advisory locks, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockClass {
    /// Of ranges: fcntl(2), of processes and of open file descriptions.
    Record,
    /// Of whole files: flock(2).
    Flock,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// With others that share.
    Shared,
    /// Alone.
    Exclusive,
    /// No lock.
    Unlock,
}

/// Bytes of a file, with the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub first: u64,
    /// Last byte; `u64::MAX` for all that follow.
    pub last: u64,
}

impl LockRange {
    /// The whole file.
    pub const ALL: LockRange = LockRange { first: 0, last: u64::MAX };

    /// True if they have a byte in common.
    pub fn overlaps(&self, other: &LockRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The smallest range that both are in.
    pub fn around(&self, other: &LockRange) -> LockRange {
        LockRange { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// A lock that somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// He has it alone.
    pub exclusive: bool,
    /// Where.
    pub range: LockRange,
    /// The process that took it; 0 if it is another client's.
    pub pid: u32,
}

/// What a client that got a lock has to know of what it may keep of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    /// Grows when the inode is opened, resized or locked by another session than the last one that did so.
    pub visits: u64,
    /// No other session has it open.
    pub alone: bool,
}

/// What became of a lock that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The ticket that it was asked for with.
    pub ticket: u64,
    /// It is there; or why it never will be. EDEADLK: whoever is in the way has come to wait for it. EBADF: the session has the
    /// inode open no more.
    pub outcome: Result<Locked, Errno>,
}
