//! Counts of the reads and writes in flight.
//!
//! # Concurrency
//! Any thread. Atomic words, and one lock that is held briefly.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use parking_lot::{Condvar, Mutex};

use crate::inode::Inode;
use crate::io::async_io::Next;

/// Number of reads and writes of a client in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<AtomicUsize>);

impl InFlight {
    /// Counts one more.
    pub(crate) fn enter(&self) -> InFlightGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(Arc::clone(&self.0))
    }

    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether recent requests were alone. If so, asking the kernel for the next request mostly finds
/// none.
#[derive(Debug, Default)]
pub(crate) struct AloneStreak(AtomicU32);

/// Length of a streak from which on `next` is asked only once per this many requests.
const MAX_STREAK: u32 = 16;

impl AloneStreak {
    /// Notes a request that is alone in flight. Returns true if `next` was asked and another
    /// request waits.
    pub(crate) fn finds_next(&self, next: impl FnOnce() -> Next) -> bool {
        let streak = self.0.fetch_add(1, Ordering::Relaxed);
        let found = (streak < MAX_STREAK || streak.is_multiple_of(MAX_STREAK)) && next() == Next::Waits;
        if found {
            self.end();
        }
        found
    }

    /// Notes a request that is not alone.
    pub(crate) fn end(&self) {
        // Only a change is stored, because all threads read the word.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Number of started reads and writes of an inode. They keep its extents in use without holding a
/// lock.
#[derive(Debug, Default)]
pub(crate) struct StartedRequests {
    count: Mutex<usize>,
    none: Condvar,
}

impl StartedRequests {
    /// Blocks until there are none. The caller keeps new ones from starting.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct StartedGuard(Arc<Inode>);

impl StartedGuard {
    /// Counts one more. The caller holds the inode's `io` and `layout_users`.
    pub(crate) fn new(inode: &Arc<Inode>) -> StartedGuard {
        *inode.started.count.lock() += 1;
        StartedGuard(Arc::clone(inode))
    }
}

impl Drop for StartedGuard {
    fn drop(&mut self) {
        let mut count = self.0.started.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.started.none.notify_all();
        }
    }
}
