//! A recall that a worker carries out, and how far it is.
//!
//! # Concurrency
//! The receiving thread acknowledges a job while a worker completes it: `state` is atomic.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use rfs_client::Client;
use rfs_proto::Recall;
use smallvec::SmallVec;

/// State of a job: the kernel has not dropped it yet; the kernel has dropped it; acknowledged
/// before the kernel has dropped it.
const WAITING: u8 = 0;
const DONE: u8 = 1;
const LATE: u8 = 2;

/// An object that the kernel drops.
pub(super) struct Job {
    pub(super) recall: Recall,
    /// Inodes whose kernel locks the drop takes.
    pub(super) locks: SmallVec<[u64; 2]>,
    /// True if this mount does not use the directory, and returns its names to the server.
    pub(super) returns_names: bool,
    /// True if the kernel keeps the name, and looks it up at its next use.
    pub(super) expires: bool,
    /// [`WAITING`], [`DONE`] or [`LATE`].
    pub(super) state: AtomicU8,
}

impl Job {
    pub(super) fn new(client: &Client, recall: &Recall) -> Job {
        let mut locks: SmallVec<[u64; 2]> = recall.inode().into_iter().collect();
        if let Recall::Owner { ino } = recall {
            locks.extend(client.caching.known_names(*ino).map(|(parent, _)| parent));
        }
        Job {
            recall: recall.clone(),
            locks,
            returns_names: false,
            expires: false,
            state: AtomicU8::new(WAITING),
        }
    }

    /// Marks the job as acknowledged to the server.
    pub(super) fn mark_acknowledged(&self, late: &AtomicUsize) {
        late.fetch_add(1, Ordering::Release);
        if self.state.compare_exchange(WAITING, LATE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            late.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns true if the kernel has dropped the object.
    pub(super) fn is_dropped(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// Marks the job as dropped by the kernel.
    pub(super) fn mark_dropped(&self, late: &AtomicUsize) {
        if self.state.swap(DONE, Ordering::AcqRel) == LATE {
            late.fetch_sub(1, Ordering::Release);
        }
    }

    pub(super) fn confirms_locks(&self) -> bool {
        matches!(self.recall, Recall::Locks { .. })
    }

    /// Returns true if the job drops pages. The kernel seldom holds a page's lock over a change of
    /// the file.
    pub(super) fn drops_pages(&self) -> bool {
        matches!(self.recall, Recall::Pages { .. })
    }

    /// Returns true if the drop takes a lock that the kernel may hold over a change of this mount.
    pub(super) fn takes_locks(&self) -> bool {
        !matches!(self.recall, Recall::Attr { .. })
    }

    /// Returns true if a write of another mount waits for the drop.
    pub(super) fn is_of_a_write(&self) -> bool {
        matches!(self.recall, Recall::Written { .. })
    }
}
