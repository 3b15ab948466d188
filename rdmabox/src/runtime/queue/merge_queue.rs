//! A queue without a thread of its own: the first thread to come combines for all (RDMAbox,
//! section IV-A).
//!
//! A thread appends its requests, then tries to become the combiner. If another thread combines,
//! that thread takes the requests along. An event count, compared after the unlock, ensures that
//! no request is stranded between the combiner's last check and its unlock.
//!
//! A combiner that cannot post a request keeps it. It sets `stalled` *before* it checks the
//! resource that it lacks. A thread that returns the resource reads `stalled` afterwards, so at
//! least one of them sees the other.
//!
//! # Concurrency
//! Called from any thread. `combiner` is locked before `arrived`, which is a leaf.

use std::ops::ControlFlow;

use crate::sync::{
    Mutex, TryMutex, TryMutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

/// A queue of requests of type `T`, with combiner state of type `C`.
#[derive(Debug)]
pub(crate) struct MergeQueue<T, C> {
    arrived: Mutex<Vec<T>>,
    combiner: TryMutex<C>,
    /// Counts the calls that require a check of the queue.
    events: AtomicU64,
    stalled: AtomicBool,
}

impl<T, C: Default> Default for MergeQueue<T, C> {
    fn default() -> Self {
        MergeQueue {
            arrived: Mutex::new(Vec::new()),
            combiner: TryMutex::default(),
            events: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
        }
    }
}

impl<T, C> MergeQueue<T, C> {
    /// Appends requests, and returns the number of requests in the queue. The caller has to
    /// [`flush`](Self::flush) afterwards.
    pub(crate) fn push(&self, requests: impl Iterator<Item = T>) -> usize {
        let mut arrived = self.arrived.lock();
        arrived.extend(requests);
        arrived.len()
    }

    /// Makes sure that the queue is combined after this call began, by this thread or by the
    /// current combiner.
    pub(crate) fn flush(&self, mut combine: impl FnMut(&mut CombinerGuard<'_, T, C>)) {
        self.flush_or_break(|guard| {
            combine(guard);
            ControlFlow::Continue(())
        });
    }

    /// Combines as [`flush`](Self::flush) does, until `combine` breaks. Returns true then. The
    /// queue may still have requests that other threads have left to this thread. The caller has to
    /// have them flushed by a call that begins after this return.
    pub(crate) fn flush_or_break(
        &self,
        mut combine: impl FnMut(&mut CombinerGuard<'_, T, C>) -> ControlFlow<()>,
    ) -> bool {
        self.events.fetch_add(1, Ordering::AcqRel);
        // The count is raised before the lock is tried. A combiner releases the lock before it
        // reads the count.
        fence(Ordering::SeqCst);
        loop {
            let Some(lock) = self.combiner.try_lock() else { return false };
            let seen = self.events.load(Ordering::Acquire);
            let mut guard = CombinerGuard { queue: self, guard: Some(lock) };
            let outcome = combine(&mut guard);
            drop(guard);
            if outcome.is_break() {
                return true;
            }
            // Threads that found the lock held have left their requests to this thread.
            fence(Ordering::SeqCst);
            if self.events.load(Ordering::Acquire) == seen {
                return false;
            }
        }
    }

    /// Runs `f` on the combiner's state, after the current combiner. The caller has to
    /// [`flush`](Self::flush) afterwards, because other threads may have left their requests to
    /// this thread.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut CombinerGuard<'_, T, C>) -> R) -> R {
        let lock = self.combiner.lock();
        f(&mut CombinerGuard { queue: self, guard: Some(lock) })
    }

    /// Returns true if a combiner had to keep a request. Callers ask after they returned a
    /// resource, and [`flush`](Self::flush) if true.
    pub(crate) fn is_stalled(&self) -> bool {
        fence(Ordering::SeqCst);
        self.stalled.load(Ordering::SeqCst)
    }
}

/// The lock on the combiner's state.
pub(crate) struct CombinerGuard<'a, T, C> {
    queue: &'a MergeQueue<T, C>,
    /// `None` only inside `unlocked`.
    guard: Option<TryMutexGuard<'a, C>>,
}

impl<T, C> CombinerGuard<'_, T, C> {
    /// Returns the combiner's state.
    pub(crate) fn state(&mut self) -> &mut C {
        match &mut self.guard {
            Some(guard) => guard,
            None => unreachable!("the combiner state is not accessible inside `unlocked`"),
        }
    }

    /// Moves the arrived requests to the list that `place` selects.
    pub(crate) fn collect(&mut self, place: impl FnOnce(&mut C) -> &mut Vec<T>) {
        let queue = self.queue;
        place(self.state()).append(&mut queue.arrived.lock());
    }

    /// Notes that requests have to be kept. Returns true if that is new. The caller then has to
    /// check for the missing resource once more.
    pub(crate) fn begin_stall(&mut self) -> bool {
        // Only the combiner writes it.
        let begins = !self.queue.stalled.load(Ordering::Relaxed);
        if begins {
            self.queue.stalled.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        begins
    }

    /// Notes that no request is kept.
    pub(crate) fn end_stall(&mut self) {
        // A thread that still sees the stall combines without need.
        if self.queue.stalled.load(Ordering::Relaxed) {
            self.queue.stalled.store(false, Ordering::Relaxed);
        }
    }

    /// Runs `f` while other threads may combine.
    pub(crate) fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.guard = None;
        let result = f();
        self.guard = Some(self.queue.combiner.lock());
        result
    }
}

#[cfg(all(loom, test))]
mod model;
