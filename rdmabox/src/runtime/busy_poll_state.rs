//! The state of the thread that polls for the started requests of all threads.
//!
//! # Concurrency
//! Any thread may read it; `overdue_at` is a leaf lock.

use std::time::Instant;

use crate::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};

/// Unsuccessful attempts in a row before further ones are skipped.
const MISSES_BEFORE_BACKOFF: u32 = 4;
/// Base-2 logarithm of the number of attempts that are skipped at most.
const MAX_SKIPS_LOG2: u32 = 10;

/// State of the serving thread.
#[derive(Debug, Default)]
pub(crate) struct BusyPollState {
    pub(crate) backoff: Backoff,
    /// True while the serving thread polls.
    pub(crate) polls: AtomicBool,
    /// Number of started requests whose owners were notified. Relaxed: a reader that misses an
    /// increment polls again.
    pub(crate) notified: AtomicUsize,
    /// Time of the next check for overdue requests. Pollers make that check if no thread serves.
    pub(crate) overdue_at: Mutex<Option<Instant>>,
}

/// Suppresses attempts where replies take longer than a thread may poll. Attempts become
/// exponentially rarer while none succeeds. Relaxed: concurrent updates may be lost, which is
/// harmless.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    misses: AtomicU32,
    skips: AtomicU32,
}

impl Backoff {
    /// Returns true if a thread should poll now. Counts down the skipped attempts.
    pub(crate) fn should_poll(&self) -> bool {
        let left = self.skips.load(Ordering::Relaxed);
        if left > 0 {
            self.skips.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// Records whether an attempt found a completion.
    pub(crate) fn record(&self, found: bool) {
        if found {
            // The counter is usually zero already, and a load is cheaper than a store.
            if self.misses.load(Ordering::Relaxed) > 0 {
                self.misses.store(0, Ordering::Relaxed);
            }
            return;
        }
        let row = (self.misses.load(Ordering::Relaxed) + 1).min(MAX_SKIPS_LOG2);
        self.misses.store(row, Ordering::Relaxed);
        if row >= MISSES_BEFORE_BACKOFF {
            self.skips.store(1 << row, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_until_one_succeeds() {
        let backoff = Backoff::default();
        // Number of attempts that are skipped before the next one.
        let skips = || (0..).take_while(|_| !backoff.should_poll()).count();
        let misses = |times: usize| {
            let once = |_| {
                backoff.record(false);
                skips()
            };
            (0..times).map(once).collect::<Vec<_>>()
        };
        assert_eq!(misses(9), [0, 0, 0, 16, 32, 64, 128, 256, 512]);
        assert_eq!(misses(3), [1024, 1024, 1024]);
        backoff.record(true);
        assert_eq!(misses(4), [0, 0, 0, 16]);
    }
}
