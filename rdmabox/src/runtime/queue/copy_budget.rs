//! The bytes that a polling thread copies to the pool before it polls again.
//!
//! The thread that polls also posts the requests that completions made room for, and copies the
//! bytes of WRITEs to the pool for that (preMR). Completions of other threads' requests wait
//! meanwhile.
//!
//! # Concurrency
//! A plain value of the polling thread.

use std::cell::Cell;

/// Bytes that a polling thread copies at once: many against a poll, and few against the time of a
/// request on the wire.
const OF_A_POLL: u64 = 256 << 10;

/// The bytes that a thread may still copy.
#[derive(Debug)]
pub(crate) struct CopyBudget(Cell<u64>);

impl CopyBudget {
    /// Returns the budget of a thread that does not poll.
    pub(crate) fn unlimited() -> CopyBudget {
        CopyBudget(Cell::new(u64::MAX))
    }

    /// Returns the budget of a thread until its next poll.
    pub(crate) fn of_a_poll() -> CopyBudget {
        CopyBudget(Cell::new(OF_A_POLL))
    }

    /// Returns the bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.0.get()
    }

    /// Sets the bytes that are left.
    pub(crate) fn set(&self, left: u64) {
        self.0.set(left);
    }
}
