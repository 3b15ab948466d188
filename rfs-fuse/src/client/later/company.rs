//! Who else has something under way.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use parking_lot::{Condvar, Mutex};

use super::Next;
use crate::client::inode::Inode;

/// Reads and writes of a client that are under way.
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

/// Whether requests have been alone lately: then to ask whether something else is asked for is mostly a call in vain.
#[derive(Debug, Default)]
pub(crate) struct Company(AtomicU32);

/// After so many in a row that were alone only each one after as many is asked for.
const ALONE: u32 = 16;

impl Company {
    /// A request comes while no other is under way. Whether something else is asked for, as far as `next` is asked.
    pub(super) fn of_single(&self, next: impl FnOnce() -> Next) -> bool {
        let row = self.0.fetch_add(1, Ordering::Relaxed);
        let found = (row < ALONE || row.is_multiple_of(ALONE)) && next() == Next::Waits;
        if found {
            self.found();
        }
        found
    }

    /// A request is not alone.
    pub(super) fn found(&self) {
        // Written only where it changes something: all threads read it.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Started reads and writes of an inode, which keep its extents in use although no thread holds a lock for them.
#[derive(Debug, Default)]
pub(crate) struct Started {
    count: Mutex<usize>,
    none: Condvar,
}

impl Started {
    /// Waits until there is none. Whoever calls this keeps new ones from being started.
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
    /// To be called with the inode's `io` and `places` held.
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
