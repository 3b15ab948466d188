//! Started reads and writes of an inode, which keep its extents in use without holding a lock.
//!
//! # Concurrency
//! Any thread. One lock, held briefly.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::inode::Inode;

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
