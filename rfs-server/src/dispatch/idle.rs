//! Counts of the unlinked inodes that the server could free, and the sessions that hold inodes
//! without having been told of them here.
//!
//! Unlinked inodes that no session has open stay for the sessions that may use their numbers.
//! [`Idle`] counts them and their space, so that totals can call both free. [`Returned`] names the
//! sessions of the server before: which inodes they were told of is not in the log, so each of them
//! holds every inode that was made before this server started.
//!
//! # Concurrency
//! Any thread. The counters are changed under the lock of the shard of their inode, and read
//! without a lock. The sessions are read under a lock that is held for moments, and written when
//! such a session asks for recalls the first time or ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

/// Unlinked inodes that no session has open.
#[derive(Debug, Default)]
pub(super) struct Idle {
    inodes: AtomicU64,
    bytes: AtomicU64,
}

impl Idle {
    /// Counts one more, with its space in the arena.
    pub(super) fn add(&self, bytes: u64) {
        self.inodes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts one less.
    pub(super) fn remove(&self, bytes: u64) {
        self.inodes.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns how many there are.
    pub(super) fn inodes(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed)
    }

    /// Returns the space that they have.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Sessions of the server before.
#[derive(Debug, Default)]
pub(super) struct Returned {
    any: AtomicBool,
    /// Each with whether it has asked for recalls here, and so has heard of all that was unlinked.
    sessions: RwLock<Vec<(u64, bool)>>,
    last_ino: AtomicU64,
}

impl Returned {
    /// Adds a session, which may have been told of inodes up to a number.
    pub(super) fn add(&self, session: u64, last_ino: u64) {
        self.sessions.write().push((session, false));
        self.last_ino.store(last_ino, Ordering::Relaxed);
        self.any.store(true, Ordering::Release);
    }

    /// Removes a session that has ended.
    pub(super) fn end(&self, session: u64) {
        if self.any.load(Ordering::Acquire) {
            self.sessions.write().retain(|&(returned, _)| returned != session);
        }
    }

    /// A session asks for recalls: it is told at once what is unlinked from now on.
    pub(super) fn asks(&self, session: u64) {
        let mut sessions = self.sessions.write();
        sessions.iter_mut().filter(|(returned, _)| *returned == session).for_each(|(_, asks)| *asks = true);
    }

    /// Returns true for a session that has not asked for recalls yet.
    pub(super) fn is_awaited(&self, session: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.sessions.read().contains(&(session, false))
    }

    /// Returns the sessions that may have been told of an inode.
    pub(super) fn holders_of(&self, ino: u64) -> Vec<u64> {
        match self.any.load(Ordering::Acquire) && ino <= self.last_ino.load(Ordering::Relaxed) {
            true => self.sessions.read().iter().map(|&(session, _)| session).collect(),
            false => Vec::new(),
        }
    }
}
