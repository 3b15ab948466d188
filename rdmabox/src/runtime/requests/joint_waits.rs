//! Requests that a thread waits for together with others.
//!
//! # Concurrency
//! The waiting thread owns the tickets. It polls the completion queues of all sessions in turn
//! (`wait_many`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::Started;
use crate::{
    error::RequestError,
    runtime::{
        queue::GroupOp,
        state::Runtime,
        wait::{CqSource, CqUser, CqWaiter, Ticket, Waitable},
    },
    sync::now,
    verbs::{VerbsError, WorkCompletion},
};

impl CqUser for Runtime {
    fn dispatch(&self, wcs: &[WorkCompletion]) {
        Runtime::dispatch(self, wcs);
    }

    fn cq_broken(&self, error: &VerbsError) {
        // The completions are lost, and with them the proof that memory is free. A queue pair in
        // Err accesses no memory, so failing the lanes frees it.
        log::error!("completion queue: {error}");
        self.fail();
    }
}

impl Runtime {
    /// Passes the queues that can complete a ticket to `visit`. Returns false if nothing of the
    /// ticket is posted. It then waits for requests on any queue.
    fn visit_sources<'a>(&'a self, ticket: &Ticket, visit: &mut dyn FnMut(CqSource<'a>)) -> bool {
        let mut posted = false;
        let mut visit = |index: usize| {
            visit(CqSource { cq_waiters: &self.cq_waiters[index], stats: &self.stats, user: self });
        };
        for index in 0..self.cq_waiters.len() {
            if !ticket.is_settled_on(index) {
                posted = true;
                visit(index);
            }
        }
        if !posted {
            (0..self.cq_waiters.len()).filter(|index| !self.pollers[*index].is_idle(*index)).for_each(visit);
        }
        posted
    }

    /// Submits an ordered list, which must not be empty, for a thread that waits for it with
    /// others.
    pub(crate) fn submit_list(&self, ops: SmallVec<[GroupOp; 4]>, timeout: Duration) -> SubmittedList<'_> {
        let ticket = Ticket::of_this_thread_within(ops.len(), timeout);
        let direction = self.queue_group(ops, &ticket);
        self.flush(direction);
        self.flush_plug();
        SubmittedList { runtime: self, ticket, timed_out: false }
    }
}

/// A submitted ordered list. It borrows its buffers, so its owner waits until it is done.
pub(crate) struct SubmittedList<'r> {
    runtime: &'r Runtime,
    ticket: Arc<Ticket>,
    timed_out: bool,
}

impl SubmittedList<'_> {
    /// Returns the outcome of a list that is done.
    pub(crate) fn result(&self) -> Result<(), RequestError> {
        match self.ticket.result() {
            Err(_) if self.timed_out => Err(RequestError::Timeout(self.ticket.timeout())),
            other => other,
        }
    }
}

impl Waitable for SubmittedList<'_> {
    fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    fn begin_wait(&mut self) -> Instant {
        now() + self.ticket.timeout()
    }

    fn end_wait(&mut self) {}

    fn abandon(&mut self) {
        self.timed_out = true;
        self.runtime.abandon(&self.ticket);
    }

    fn sources<'a>(&'a self, visit: &mut dyn FnMut(CqSource<'a>)) -> bool {
        self.runtime.visit_sources(&self.ticket, visit)
    }
}

impl<B> Waitable for Started<B> {
    fn is_done(&self) -> bool {
        Started::is_done(self)
    }

    fn begin_wait(&mut self) -> Instant {
        self.own_by_thread(now())
    }

    fn end_wait(&mut self) {
        if !Started::is_done(self) {
            self.ticket().clear_owner();
        }
    }

    fn abandon(&mut self) {
        self.runtime().abandon(self.ticket());
    }

    fn sources<'a>(&'a self, visit: &mut dyn FnMut(CqSource<'a>)) -> bool {
        self.runtime().visit_sources(self.ticket(), visit)
    }
}

/// Returns the latest time to wait until: `limit` from now on. `None` if that is out of range.
pub(crate) fn deadline_of(limit: Duration) -> Option<Instant> {
    now().checked_add(limit)
}
