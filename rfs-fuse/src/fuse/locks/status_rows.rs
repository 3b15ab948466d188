//! Lists the lock requests of a mount that wait, for its status.
//!
//! # Concurrency
//! Any thread; the lock of the waiters is held for a moment.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use rfs_proto::{LockClass, LockKind};

use super::lock_waiters::{LockWaiters, Waiter};

/// Requests that are listed at most.
const MAX_LISTED: usize = 100;

/// A lock request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// Inode of the file.
    pub ino: u64,
    /// The process that waits.
    pub pid: u32,
    /// flock(2) or fcntl(2).
    pub class: LockClass,
    /// The request is for an exclusive lock.
    pub is_exclusive: bool,
    /// Time since the request.
    pub age: Duration,
}

/// Lists the lock requests of a mount that wait. It does not keep the mount's locks alive.
#[derive(Clone)]
pub struct LockWaits(Weak<LockWaiters>);

impl std::fmt::Debug for LockWaits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockWaits")
    }
}

impl LockWaits {
    pub(super) fn new(shared: &Arc<LockWaiters>) -> LockWaits {
        LockWaits(Arc::downgrade(shared))
    }

    /// Returns the requests, the oldest first, up to 100.
    pub fn list(&self) -> Vec<LockWait> {
        let Some(shared) = self.0.upgrade() else { return Vec::new() };
        let mut waits: Vec<LockWait> = {
            let state = shared.state.lock();
            let wait = |waiter: &Waiter| LockWait {
                ino: waiter.wanted.ino,
                pid: waiter.wanted.pid,
                class: waiter.wanted.class,
                is_exclusive: waiter.wanted.kind == LockKind::Exclusive,
                age: waiter.since.elapsed(),
            };
            state.waiters.values().map(wait).collect()
        };
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.age));
        waits.truncate(MAX_LISTED);
        waits
    }
}
