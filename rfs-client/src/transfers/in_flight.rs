//! Counts of the reads and writes in flight.
//!
//! # Concurrency
//! Any thread. Atomic words.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

/// Other work of a thread after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueHint {
    /// Another request is waiting.
    Waits,
    /// The caller adds another request at once, or flushes the batch
    /// ([`AsyncIo::flush`](crate::AsyncIo::flush)).
    Follows,
    /// No request is waiting: the thread would block.
    Nothing,
    /// No request is waiting. Replies leave only when this thread returns to the kernel: it polls
    /// until one is due.
    PollForReplies,
    /// Unknown until the thread returns to the kernel.
    Unknown,
}

/// Number of reads and writes of a client in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<AtomicUsize>);

impl InFlight {
    /// Counts one more transfer.
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
    pub(crate) fn finds_next(&self, next: impl FnOnce() -> QueueHint) -> bool {
        let streak = self.0.fetch_add(1, Ordering::Relaxed);
        let found = (streak < MAX_STREAK || streak.is_multiple_of(MAX_STREAK)) && next() == QueueHint::Waits;
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
