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
    /// True while another thread serves all started requests (`path::busy_poll`).
    pub(crate) served: Arc<AtomicBool>,
}

impl PollerState {
    pub(crate) fn new(lanes: Arc<[Lane]>, served: Arc<AtomicBool>) -> PollerState {
        let (wanted, thread, handle) = (AtomicBool::new(false), OnceLock::new(), Mutex::new(None));
        PollerState { lanes, wanted, interruption: Interruption::default(), thread, handle, served }
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
        let over = || self.is_idle(cq_index) || self.served.load(Ordering::SeqCst);
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
