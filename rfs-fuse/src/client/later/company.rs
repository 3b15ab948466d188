//! Counts of the reads and writes in flight.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use parking_lot::{Condvar, Mutex};

use super::Next;
use crate::client::inode::Inode;

/// Number of reads and writes of a client in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct One(Arc<AtomicUsize>);

impl Transfers {
    /// Counts one more.
    pub(crate) fn enter(&self) -> One {
        self.0.fetch_add(1, Ordering::Relaxed);
        One(Arc::clone(&self.0))
    }

    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether recent requests were alone. If so, asking the kernel for the next request mostly finds
/// none.
#[derive(Debug, Default)]
pub(crate) struct Company(AtomicU32);

/// After this many requests in a row that were alone, `next` is asked only for every such number
/// of requests.
const ALONE: u32 = 16;

impl Company {
    /// Notes a request that is alone in flight. Returns true if `next` was asked and another
    /// request waits.
    pub(super) fn of_single(&self, next: impl FnOnce() -> Next) -> bool {
        let row = self.0.fetch_add(1, Ordering::Relaxed);
        let found = (row < ALONE || row.is_multiple_of(ALONE)) && next() == Next::Waits;
        if found {
            self.found();
        }
        found
    }

    /// Notes a request that is not alone.
    pub(super) fn found(&self) {
        // Only a change is stored, because all threads read the word.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Number of started reads and writes of an inode. They keep its extents in use without holding a
/// lock.
#[derive(Debug, Default)]
pub(crate) struct Started {
    count: Mutex<usize>,
    none: Condvar,
}

impl Started {
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
pub(super) struct OneStarted(Arc<Inode>);

impl OneStarted {
    /// Counts one more. The caller holds the inode's `io` and `places`.
    pub(super) fn new(inode: &Arc<Inode>) -> OneStarted {
        *inode.started.count.lock() += 1;
        OneStarted(Arc::clone(inode))
    }
}

impl Drop for OneStarted {
    fn drop(&mut self) {
        let mut count = self.0.started.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.started.none.notify_all();
        }
    }
}
