//! Started reads and writes of an inode, which keep its extents in use without holding a lock.
//!
//! # Concurrency
//! Any thread. One atomic word. A thread that waits for the last request holds a lock of the inode
//! while it looks at the word, and releases it to sleep. So the thread that ends the last request
//! takes that lock only if a thread waits.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::{Condvar, Mutex};

use crate::inode::Inode;

/// Bit of the word that says that a thread may wait.
const WAITED: usize = 1;
/// One request in the word.
const ONE: usize = 2;

/// Number of started reads and writes of an inode. They keep its extents in use without holding a
/// lock.
#[derive(Debug, Default)]
pub(crate) struct StartedRequests {
    word: AtomicUsize,
    none: Condvar,
}

impl StartedRequests {
    /// Blocks until there are none. The caller keeps new ones from starting. Every call has the
    /// same `lock`, which the caller does not hold.
    pub(crate) fn wait<T>(&self, lock: &Mutex<T>) {
        if self.word.load(Ordering::Acquire) < ONE {
            return;
        }
        let mut guard = lock.lock();
        while self.word.fetch_or(WAITED, Ordering::AcqRel) >= ONE {
            self.none.wait(&mut guard);
        }
        // Another waiter sets the bit again before it sleeps again.
        self.word.fetch_and(!WAITED, Ordering::Relaxed);
    }

    fn begin(&self) {
        self.word.fetch_add(ONE, Ordering::Relaxed);
    }

    fn end<T>(&self, lock: &Mutex<T>) {
        if self.word.fetch_sub(ONE, Ordering::AcqRel) == ONE | WAITED {
            // The waiter set the bit under the lock, so by now it sleeps, or has seen the end.
            drop(lock.lock());
            self.none.notify_all();
        }
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct StartedGuard(Arc<Inode>);

impl StartedGuard {
    /// Counts one more request. The caller holds the inode's `io` and `layout_users`.
    pub(crate) fn new(inode: &Arc<Inode>) -> StartedGuard {
        inode.started.begin();
        StartedGuard(Arc::clone(inode))
    }
}

impl Drop for StartedGuard {
    fn drop(&mut self) {
        self.0.started.end(&self.0.caller);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread, time::Duration};

    use super::*;

    #[test]
    fn a_wait_ends_with_the_last_request() {
        let inode = Arc::new(Inode::new(5));
        inode.started.wait(&inode.caller);
        let (one, two) = (StartedGuard::new(&inode), StartedGuard::new(&inode));
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let waiters = [0, 1].map(|_| {
                scope.spawn(|| {
                    inode.started.wait(&inode.caller);
                    assert!(ended.load(Ordering::Relaxed));
                })
            });
            drop(one);
            thread::sleep(Duration::from_millis(20));
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
            ended.store(true, Ordering::Relaxed);
            drop(two);
        });
        assert_eq!(inode.started.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_end_is_missed() {
        let inode = Arc::new(Inode::new(5));
        for _ in 0..2000 {
            let started = StartedGuard::new(&inode);
            thread::scope(|scope| {
                scope.spawn(|| inode.started.wait(&inode.caller));
                drop(started);
            });
        }
    }
}
