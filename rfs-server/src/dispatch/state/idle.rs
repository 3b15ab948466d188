//! Idle inodes, and the sessions of the previous server.
//!
//! An unlinked inode that no session has open is idle: it stays for the sessions that may use its
//! number. [`Idle`] counts these inodes and their space, which the totals report as free.
//! [`PreviousSessions`] lists the sessions of the previous server. The log does not record which
//! inodes they know, so each of them holds every inode from before this start.
//!
//! # Concurrency
//! Any thread. The counters change under the lock of the inode's shard, and are read without a
//! lock. The list has a lock. It is written when such a session first asks for recalls, or ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

/// Unlinked inodes that no session has open.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Idle {
    inodes: AtomicU64,
    bytes: AtomicU64,
}

impl Idle {
    /// Adds an inode with its space in the arena.
    pub(in crate::dispatch) fn add(&self, bytes: u64) {
        self.inodes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes an inode.
    pub(in crate::dispatch) fn remove(&self, bytes: u64) {
        self.inodes.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the number of inodes.
    pub(in crate::dispatch) fn inodes(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed)
    }

    /// Returns the bytes that they have in the arena.
    pub(in crate::dispatch) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Sessions of the previous server.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct PreviousSessions {
    any: AtomicBool,
    /// Each session, with whether it has asked this server for recalls. A session that has asked
    /// has received all unlinked inodes.
    sessions: RwLock<Vec<(u64, bool)>>,
    last_ino: AtomicU64,
}

impl PreviousSessions {
    /// Adds a session, which may know inodes up to `last_ino`.
    pub(in crate::dispatch) fn add(&self, session: u64, last_ino: u64) {
        self.sessions.write().push((session, false));
        self.last_ino.store(last_ino, Ordering::Relaxed);
        self.any.store(true, Ordering::Release);
    }

    /// Removes a session that has ended.
    pub(in crate::dispatch) fn end(&self, session: u64) {
        if self.any.load(Ordering::Acquire) {
            self.sessions.write().retain(|&(previous, _)| previous != session);
        }
    }

    /// Records that a session asks for recalls: from now on it receives unlinked inodes at once.
    pub(in crate::dispatch) fn asks(&self, session: u64) {
        let mut sessions = self.sessions.write();
        sessions.iter_mut().filter(|(previous, _)| *previous == session).for_each(|(_, asks)| *asks = true);
    }

    /// Returns true for a session of the previous server that has not asked for recalls yet.
    pub(in crate::dispatch) fn has_not_asked(&self, session: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.sessions.read().contains(&(session, false))
    }

    /// Returns the sessions that may know an inode.
    pub(in crate::dispatch) fn holders_of(&self, ino: u64) -> Vec<u64> {
        match self.any.load(Ordering::Acquire) && ino <= self.last_ino.load(Ordering::Relaxed) {
            true => self.sessions.read().iter().map(|&(session, _)| session).collect(),
            false => Vec::new(),
        }
    }
}
