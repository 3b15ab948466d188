//! Ends the wait of a poller that has to compute the time of its next check again.
//!
//! A poller sleeps until its next check for overdue requests. A shorter timeout brings the check
//! forward. The thread that brings the timeout interrupts the poller, which waits again at once.
//!
//! # Concurrency
//! Any thread may call any method. Not a type of the model checker: no model changes a timeout.

use std::sync::atomic::{AtomicBool, Ordering};

/// The request to a poller to leave its wait.
#[derive(Debug, Default)]
pub(crate) struct Interruption(AtomicBool);

impl Interruption {
    /// Makes the poller leave its wait. The caller wakes it afterwards.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns true if the poller has to leave its wait.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Ends the interruption. The poller calls it before it reads the shortest timeout.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
