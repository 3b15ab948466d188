//! Locks of ranges, which hold between all mounts.
//!
//! A lock belongs to the open file, as one of F_OFD_SETLK. The last close releases it. If a lock is
//! lost with a session, each later read and write of the open file fails with EIO.

use std::{
    ops::{Bound, RangeBounds},
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use rfs_client::{ClientError, LockOutcome, LockRequest};
use rfs_proto::{Errno, LockClass, LockKind, LockRange};

use super::{File, OpenFile};
use crate::error::{Result, on};

/// First pause of a thread that waits for a lock. It doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Other shared locks are compatible.
    Shared,
    /// No other lock is compatible.
    Exclusive,
}

/// Returns the bytes of a range.
fn bytes(range: &impl RangeBounds<u64>) -> std::result::Result<LockRange, Errno> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.checked_add(1).ok_or(Errno::EINVAL)?,
        Bound::Unbounded => 0,
    };
    let last = match range.end_bound() {
        Bound::Included(last) => *last,
        Bound::Excluded(end) => end.checked_sub(1).ok_or(Errno::EINVAL)?,
        Bound::Unbounded => LockRange::ALL.last,
    };
    if start > last { Err(Errno::EINVAL) } else { Ok(LockRange { first: start, last }) }
}

impl OpenFile {
    fn request(&self, kind: LockKind, range: LockRange) -> LockRequest {
        let (ino, handle, owner) = (self.node.ino, self.handle, self.handle);
        LockRequest { ino, handle, owner, class: LockClass::Record, kind, range, pid: std::process::id() }
    }

    /// Takes a lock. Returns false if another lock conflicts.
    fn try_lock(&self, mode: LockMode, range: LockRange) -> std::result::Result<bool, ClientError> {
        match mode {
            LockMode::Shared => self.check_read()?,
            LockMode::Exclusive => self.check_write()?,
        }
        self.locks.store(true, Ordering::Release);
        let kind = match mode {
            LockMode::Shared => LockKind::Shared,
            LockMode::Exclusive => LockKind::Exclusive,
        };
        match self.core.client.locks.lock(&self.request(kind, range), None) {
            Ok(LockOutcome::Locked { .. }) => Ok(true),
            // Without a ticket no request waits.
            Ok(LockOutcome::Queued) => Err(ClientError::Protocol("a lock request waits unasked")),
            Err(ClientError::Errno(Errno::EAGAIN)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn unlock(&self, range: LockRange) -> std::result::Result<(), ClientError> {
        self.core.client.locks.unlock(&self.request(LockKind::Unlock, range))
    }
}

impl File {
    /// Locks a range of bytes, if no other lock conflicts. Returns false if one does. A process
    /// that gets a lock reads everything that earlier holders wrote, on any mount.
    ///
    /// # Errors
    /// EBADF if the file is not open for reading (shared) or writing (exclusive). EINVAL for an
    /// empty range. ENOLCK if the mount has too many locks.
    pub fn try_lock(&self, mode: LockMode, range: impl RangeBounds<u64>) -> Result<bool> {
        let locked =
            bytes(&range).map_err(ClientError::from).and_then(|range| self.inner.try_lock(mode, range));
        locked.map_err(on("try_lock", self.ino()))
    }

    /// Locks a range of bytes, and waits while another lock conflicts. The wait asks every 20 ms at
    /// least, and has no queue: a kernel's waiter may be faster. Deadlocks are not found.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    pub fn lock(&self, mode: LockMode, range: impl RangeBounds<u64>) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        let range = bytes(&range).map_err(|e| on("lock", self.ino())(e.into()))?;
        while !self.inner.try_lock(mode, range).map_err(on("lock", self.ino()))? {
            thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
        Ok(())
    }

    /// Unlocks a range of bytes, and publishes the time of the last write.
    ///
    /// # Errors
    /// Any error of the session. The server releases the lock with the session.
    pub fn unlock(&self, range: impl RangeBounds<u64>) -> Result<()> {
        let unlocked = bytes(&range).map_err(ClientError::from).and_then(|range| self.inner.unlock(range));
        unlocked.map_err(on("unlock", self.ino()))
    }
}
