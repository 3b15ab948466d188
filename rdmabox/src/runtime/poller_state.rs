//! The state of a completion queue's poller.
//!
//! # Concurrency
//! Any thread may read it. `wanted` is set after a post and cleared before the last check, so no
//! request is missed. `handle` is a leaf.

use std::sync::Arc;

use super::{
    lane::Lane,
    wait::{CqWaiter, Interruption},
};
use crate::sync::{
    JoinHandle, Mutex, OnceLock, Thread,
    atomic::{AtomicBool, Ordering},
};

/// State of the poller of a completion queue.
#[derive(Debug)]
pub(crate) struct PollerState {
    pub(crate) lanes: Arc<[Lane]>,
    /// True if requests may be outstanding.
    pub(crate) wanted: AtomicBool,
    /// Set if the poller has to check for overdue requests sooner.
    pub(crate) interruption: Interruption,
    pub(crate) thread: OnceLock<Thread>,
    pub(crate) handle: Mutex<Option<JoinHandle<()>>>,
    /// True while another thread serves all started requests (`requests::busy_poll`).
    pub(crate) served: Arc<AtomicBool>,
    /// True if the poller goes on, as its polling mode says, while no request is outstanding.
    stands: bool,
}

impl PollerState {
    pub(crate) fn new(lanes: Arc<[Lane]>, served: Arc<AtomicBool>, stands: bool) -> PollerState {
        let (wanted, thread, handle) = (AtomicBool::new(false), OnceLock::new(), Mutex::new(None));
        PollerState { lanes, wanted, interruption: Interruption::default(), thread, handle, served, stands }
    }

    /// Makes a poller that stands leave its wait, so that it finds that the session stops.
    pub(crate) fn dismiss(&self) {
        if self.stands {
            self.interruption.set();
        }
    }

    pub(crate) fn is_idle(&self, cq_index: usize) -> bool {
        self.lanes.iter().filter(|lane| lane.cq_index == cq_index).all(Lane::is_idle)
    }
}

impl CqWaiter for PollerState {
    fn is_settled_on(&self, cq_index: usize) -> bool {
        if self.interruption.is_set() {
            // The poller waits again at once, and is still wanted.
            return true;
        }
        let over = || (!self.stands && self.is_idle(cq_index)) || self.served.load(Ordering::SeqCst);
        if !over() {
            return false;
        }
        self.wanted.store(false, Ordering::SeqCst);
        // A thread that posted, or stopped to serve, before this store saw `wanted` set and woke no
        // poller. This check sees its requests.
        if over() {
            return true;
        }
        self.wanted.store(true, Ordering::SeqCst);
        false
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn poller(stands: bool) -> PollerState {
        PollerState::new(Arc::from([]), Arc::new(AtomicBool::new(false)), stands)
    }

    /// Catches a poller that parks while it has to stand, and a poller that never parks. Also
    /// catches a poller that stands at the end of the session, or beside a thread that serves.
    #[test]
    fn only_a_poller_that_stands_goes_on_without_requests() {
        for (stands, leaves) in [(false, true), (true, false)] {
            let poller = poller(stands);
            poller.wanted.store(true, Ordering::SeqCst);
            assert_eq!(poller.is_settled_on(0), leaves);
            assert_eq!(poller.wanted.load(Ordering::SeqCst), !leaves);
        }
        let stands = poller(true);
        stands.served.store(true, Ordering::SeqCst);
        assert!(stands.is_settled_on(0));
        let ends = poller(true);
        ends.dismiss();
        assert!(ends.is_settled_on(0));
    }
}
