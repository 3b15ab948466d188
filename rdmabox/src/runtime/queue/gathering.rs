//! Started requests that stay in the merge queue for a short time, to leave with their neighbours.
//!
//! A thread that starts a request while others are under way may leave it in the merge queue. It
//! does so only if another thread is certain to drain the queue soon. That is the thread that polls
//! completions, or a thread that ticks while no thread polls. Otherwise the starting thread posts
//! the request.
//!
//! No request is stranded. The starting thread sets `left`, then checks for a draining thread. A
//! draining thread that stops to drain says so first, then checks `left`. At least one of them
//! sees the other.
//!
//! # Concurrency
//! Called from any thread. No locks.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The state of the requests that were left in the merge queues of both directions.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// True if requests of a direction may be in the merge queue without a flush on its way.
    left: [AtomicBool; 2],
    /// Number of times that left requests of a direction were taken.
    taken: [AtomicU64; 2],
    /// True while a thread checks at intervals whether requests were left for too long.
    ticking: AtomicBool,
    /// True if a combiner has handed the queue of a direction over to the thread that ticks.
    handed_over: [AtomicBool; 2],
}

impl Gathering {
    /// Leaves the queued requests of a direction to the thread that polls, if `is_polled` returns
    /// true. Otherwise a thread has to [tick](Self::start_ticking), or the caller has to
    /// [take](Self::take) and flush the requests.
    pub(crate) fn leave(&self, direction: usize, is_polled: impl FnOnce() -> bool) -> bool {
        self.left[direction].swap(true, Ordering::SeqCst);
        is_polled()
    }

    /// Returns true if requests of a direction were left. The caller has to flush the direction.
    pub(crate) fn take(&self, direction: usize) -> bool {
        // The load comes first, because threads that poll ask often.
        let taken =
            self.left[direction].load(Ordering::SeqCst) && self.left[direction].swap(false, Ordering::SeqCst);
        if taken {
            self.taken[direction].fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Returns true if requests of any direction were left.
    pub(crate) fn has_left(&self) -> bool {
        self.left.iter().any(|left| left.load(Ordering::SeqCst))
    }

    /// Returns the number of times that left requests of a direction were taken.
    pub(crate) fn taken(&self, direction: usize) -> u64 {
        self.taken[direction].load(Ordering::Relaxed)
    }

    /// Returns true while a thread ticks.
    pub(crate) fn is_ticking(&self) -> bool {
        self.ticking.load(Ordering::SeqCst)
    }

    /// Declares that a thread will tick, which takes the requests that were left before this call.
    /// Returns true if none did before: the caller has to wake that thread.
    pub(crate) fn start_ticking(&self) -> bool {
        !self.ticking.swap(true, Ordering::SeqCst)
    }

    /// Hands the queue of a direction over to the thread that ticks. The caller has to wake that
    /// thread.
    pub(crate) fn hand_over(&self, direction: usize) {
        self.handed_over[direction].swap(true, Ordering::SeqCst);
    }

    /// Returns true if the queue of a direction was handed over. The caller has to flush the
    /// direction.
    pub(crate) fn take_over(&self, direction: usize) -> bool {
        self.handed_over[direction].swap(false, Ordering::SeqCst)
    }

    /// Declares that no thread ticks. The caller has to take and flush the requests that were left.
    pub(crate) fn stop_ticking(&self) {
        self.ticking.swap(false, Ordering::SeqCst);
    }
}

#[cfg(all(loom, test))]
mod model;
