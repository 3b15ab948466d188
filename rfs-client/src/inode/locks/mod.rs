//! The file locks of an inode: held, lost, and being given up.
//!
//! # Concurrency
//! Any thread, without a lock. The atomic words let the common case, without lost locks, skip the
//! lock of [`HeldLocks`].

pub(crate) mod held_locks;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rfs_proto::Errno;

use crate::{error::ClientError, inode::locks::held_locks::HeldLocks, remote::address::Epoch};

/// The losses and releases of the locks of one inode.
#[derive(Debug, Default)]
pub(crate) struct LockState {
    any_lost: AtomicBool,
    /// Last epoch at whose beginning locks were lost; 0, the first epoch, if none were.
    lost_in: AtomicU32,
    /// Number of releases in flight that give up locks.
    unlocking: AtomicU32,
}

impl LockState {
    /// Marks the handles that hold locks, because the locks are lost as `epoch` begins.
    /// Returns the number of newly marked handles.
    pub(crate) fn lose(&self, held: &mut HeldLocks, epoch: Epoch) -> usize {
        let lost = held.lose_all();
        self.any_lost.store(held.has_lost_any(), Ordering::Release);
        if lost > 0 {
            self.lost_in.store(epoch.0, Ordering::Release);
        }
        lost
    }

    /// Returns EIO if locks were lost at the beginning of an epoch after `epoch`. They may have
    /// guarded operations that were issued in `epoch`.
    pub(crate) fn check_guards(&self, epoch: Epoch) -> Result<(), ClientError> {
        if self.lost_in.load(Ordering::Acquire) > epoch.0 { Err(Errno::EIO.into()) } else { Ok(()) }
    }

    /// Returns false if no handle held a lock that is lost.
    pub(crate) fn has_lost_any(&self) -> bool {
        self.any_lost.load(Ordering::Acquire)
    }

    /// Counts a release that gives up locks.
    pub(crate) fn begin_unlock(&self) {
        self.unlocking.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the end of a release.
    pub(crate) fn end_unlock(&self) {
        self.unlocking.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns true if a release is in flight that gives up locks.
    pub(crate) fn is_unlocking(&self) -> bool {
        self.unlocking.load(Ordering::SeqCst) > 0
    }
}
