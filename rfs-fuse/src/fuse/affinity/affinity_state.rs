//! State that session threads and the monitor share.
//!
//! [`AffinityState`] has the session threads, the caller that they are pinned to, and counters.
//!
//! # Concurrency
//! Session threads and the monitor. One lock over the list of session threads.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::Thread,
};

use parking_lot::Mutex;

use super::{
    overlap::InFlight,
    thread_stats::{NO_THREAD, Tally, ThreadStats},
};

/// Stands for all callers of a mount. No thread has this number.
pub(super) const SEVERAL: u32 = u32::MAX;

/// Work of a caller in a row that wakes the monitor.
const DENSE_RUN: u16 = 32;

/// State that session threads and the monitor share.
#[derive(Debug, Default)]
pub(super) struct AffinityState {
    pub(super) session_threads: Mutex<Vec<Arc<ThreadStats>>>,
    pub(super) monitor: OnceLock<Thread>,
    /// True while the monitor sleeps until a session thread wakes it.
    pub(super) asleep: AtomicBool,
    /// The caller to which session threads are pinned, [`SEVERAL`], or [`NO_THREAD`].
    pub(super) pinned_to: AtomicU32,
    /// True if session threads may be pinned for several callers.
    pub(super) several: bool,
    pub(super) stop: AtomicBool,
    pub(super) in_flight: InFlight,
    pub(super) pins: AtomicU64,
    pub(super) rescues: AtomicU64,
    pub(super) overlaps: AtomicU64,
}

impl AffinityState {
    /// Returns true if the monitor has to act now. Another caller than the pinned one has made a
    /// request, the kernel has requested much on its own, or a caller may be worth pinning.
    #[inline]
    pub(super) fn needs_monitor(&self, before: Tally, tally: Tally) -> bool {
        match self.pinned_to.load(Ordering::Relaxed) {
            NO_THREAD => {
                (tally.run >= DENSE_RUN || self.several && tally.run > 0)
                    && tally.passed(DENSE_RUN, before)
                    && self.asleep.load(Ordering::Relaxed)
            }
            SEVERAL => false,
            pinned_to => tally.caller != pinned_to || tally.run == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monitor_wakes_for_other_callers_and_for_dense_work() {
        let shared = AffinityState::default();
        let tally = |caller, run, count| Tally { caller, run, count };
        // A tally after one more unit of work.
        let needs_monitor = |shared: &AffinityState, tally: Tally| {
            shared.needs_monitor(Tally { count: tally.count.wrapping_sub(1), ..tally }, tally)
        };
        assert!(!needs_monitor(&shared, tally(5, 32, 64)), "it is awake");
        shared.asleep.store(true, Ordering::Relaxed);
        assert!(needs_monitor(&shared, tally(5, 32, 64)) && needs_monitor(&shared, tally(5, u16::MAX, 0)));
        assert!(shared.needs_monitor(tally(5, 7, 63), tally(5, 40, 96)), "it was as much at once");
        for tally in [tally(5, 31, 64), tally(5, 40, 63), tally(5, 0, 0)] {
            assert!(!needs_monitor(&shared, tally));
        }
        shared.asleep.store(false, Ordering::Relaxed);
        shared.pinned_to.store(5, Ordering::Relaxed);
        assert!(!needs_monitor(&shared, tally(5, 1, 1)));
        assert!(needs_monitor(&shared, tally(6, 1, 1)) && needs_monitor(&shared, tally(5, 0, 64)));
        // With several callers, dense work wakes the monitor, and a change of the caller does not.
        let shared = AffinityState { several: true, ..AffinityState::default() };
        shared.asleep.store(true, Ordering::Relaxed);
        assert!(needs_monitor(&shared, tally(5, 1, 64)));
        assert!(!needs_monitor(&shared, tally(5, 0, 64)) && !needs_monitor(&shared, tally(5, 1, 63)));
        shared.pinned_to.store(SEVERAL, Ordering::Relaxed);
        assert!(!needs_monitor(&shared, tally(5, 1, 64)) && !needs_monitor(&shared, tally(6, 0, 64)));
    }
}
