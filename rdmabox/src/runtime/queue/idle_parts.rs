//! Tickets and loan counts of finished started requests, kept for reuse.
//!
//! # Concurrency
//! Any thread may take and put parts; the lock is a leaf.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{memory::LoanCount, runtime::wait::Ticket, sync::Mutex};

/// Limit of the parts kept for reuse. More exist while more requests are in flight.
const MAX_KEPT: usize = 1024;

/// The reusable parts of a started request, which do not depend on its buffer.
#[derive(Debug)]
struct Parts {
    ticket: Arc<Ticket>,
    count: LoanCount,
}

/// The parts that no request uses.
#[derive(Debug, Default)]
pub(crate) struct IdleParts(Mutex<VecDeque<Parts>>);

impl IdleParts {
    /// Returns a ticket for `count` requests with an operation timeout, and a loan count for their
    /// buffer.
    pub(crate) fn take(&self, count: usize, timeout: Duration) -> (Arc<Ticket>, LoanCount) {
        // The oldest ticket is the least likely to be still held by another thread.
        match self.0.lock().pop_front() {
            Some(idle) => (Ticket::unowned(count, timeout, Some(idle.ticket)), idle.count),
            None => (Ticket::unowned(count, timeout, None), LoanCount::default()),
        }
    }

    /// Keeps the parts of a finished request, unless there are enough.
    pub(crate) fn put(&self, ticket: Arc<Ticket>, count: LoanCount) {
        let mut idle = self.0.lock();
        if idle.len() < MAX_KEPT {
            idle.push_back(Parts { ticket, count });
        }
    }
}
