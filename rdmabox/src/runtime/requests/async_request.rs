//! Started requests: a caller waits later, awaits, or gets a callback.
//!
//! [`Started`] owns the ticket and the lent buffer of a request. The buffer returns to the caller
//! when the last loan of it is dropped.
//!
//! # Concurrency
//! A `Started` has one owner, on any thread. Tickets and loan counts are reused;
//! `Runtime::idle_parts` is a leaf lock.

use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use crate::{
    error::RequestError,
    memory::{Lent, LoanCount},
    runtime::{
        queue::{CopyBudget, GroupOp},
        requests::WaitedBy,
        state::Runtime,
        wait::{CqWaiter, Notice, Ticket, in_callback},
    },
    sync::{atomic::Ordering, now},
    verbs::{RemoteAddr, WorkCompletion},
};

/// A started request. Its buffer is lent until the request is done.
#[derive(Debug)]
pub(crate) struct Started<B> {
    runtime: Arc<Runtime>,
    ticket: Arc<Ticket>,
    lent: Lent<B>,
    /// True if a plug may hold its requests back. It may be another thread's, or an outer one.
    is_plugged: bool,
    /// Start of the first limited wait, from which the operation timeout counts.
    first_wait: Option<Instant>,
}

/// The outcome of a started request, and its buffer. A failed atomic has none.
pub(crate) type Ended<B> = (Result<(), RequestError>, Option<B>);

impl Runtime {
    /// Returns a ticket for `count` requests with an operation timeout, and a loan count for their
    /// buffer.
    pub(crate) fn take_idle(&self, count: usize, timeout: Duration) -> (Arc<Ticket>, LoanCount) {
        self.idle_parts.take(count, timeout)
    }

    /// Submits requests of one direction that use a lent buffer. They may stay in the merge queue
    /// for a short time (`requests::gathering`).
    pub(crate) fn begin(
        &self,
        write: bool,
        count: usize,
        requests: impl Iterator<Item = (RemoteAddr, crate::memory::Loan)>,
        ticket: &Arc<Ticket>,
        waited_by: WaitedBy,
    ) {
        self.queued.fetch_add(1, Ordering::SeqCst);
        let mut bytes = 0;
        let requests = requests.inspect(|(_, loan)| bytes += loan.len() as u64);
        let (direction, queued) = self.queue(write, count, requests, ticket);
        if !self.add_to_plug(direction) && self.flush_or_leave(direction, bytes, queued, waited_by) {
            self.poll_if_executed(ticket);
        }
    }

    /// Submits an ordered list, which must not be empty, that uses lent buffers.
    pub(crate) fn begin_group(&self, ops: SmallVec<[GroupOp; 4]>, ticket: &Arc<Ticket>) {
        self.queued.fetch_add(1, Ordering::SeqCst);
        let direction = self.queue_group(ops, ticket);
        if !self.add_to_plug(direction) {
            self.flush(direction);
            self.poll_if_executed(ticket);
        }
    }

    /// Polls at once where posting executes, because the request is then done. Leaves it to the
    /// leader if there is one.
    fn poll_if_executed(&self, ticket: &Ticket) {
        if self.executes_at_post
            && !in_callback()
            && let Some(cq_index) = ticket.unsettled_cq()
            && !self.cq_waiters[cq_index].has_poller()
        {
            let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
            self.cq_waiters[cq_index].poll_until_empty(&self.stats, &dispatch);
        }
    }

    /// Makes sure that pollers complete a ticket that no thread waits for.
    fn wake_pollers_for(&self, ticket: &Ticket) {
        let mut posted = false;
        for cq_index in 0..self.cq_waiters.len() {
            if !ticket.is_settled_on(cq_index) {
                posted = true;
                self.wake_poller(cq_index);
            }
        }
        if !posted && !ticket.is_done() {
            self.wake_pollers_for_started();
        }
    }
}

impl<B> Started<B> {
    /// Returns the started request whose requests this thread has just submitted.
    pub(crate) fn new(runtime: Arc<Runtime>, ticket: Arc<Ticket>, lent: Lent<B>) -> Started<B> {
        let is_plugged = runtime.has_plug();
        Started { runtime, ticket, lent, is_plugged, first_wait: None }
    }

    /// Makes sure that its requests are posted, or wait for room, because its owner is about to
    /// wait. Posts the requests that this thread has plugged as well.
    fn unplug(&mut self) {
        self.runtime.flush_plug();
        if std::mem::take(&mut self.is_plugged) && !self.is_done() && self.ticket.unsettled_cq().is_none() {
            self.runtime.flush_directions([true; 2], &CopyBudget::unlimited());
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits until the request is done. Returns its outcome and its buffer.
    pub(crate) fn wait(mut self) -> Ended<B> {
        self.unplug();
        self.runtime.drain();
        self.ticket.set_owner_thread();
        let result = self.runtime.wait(&self.ticket);
        self.end(result)
    }

    /// Waits at most for `limit`. Returns the outcome and the buffer, or the request if it is still
    /// under way. Fails the request when the operation timeout since the first wait has passed.
    pub(crate) fn wait_timeout(mut self, limit: Duration) -> Result<Ended<B>, Started<B>> {
        if self.is_done() {
            return Ok(self.finish());
        }
        let now = now();
        let overdue = self.own_by_thread(now);
        // No limit above the timeout is of use, and a sum with a very long one would overflow.
        let deadline = overdue.min(now + limit.min(self.ticket.timeout()));
        if self.runtime.wait_until(&self.ticket, deadline) {
            return Ok(self.finish());
        }
        if deadline < overdue {
            self.ticket.clear_owner();
            return Err(self);
        }
        let result = self.runtime.time_out(&self.ticket);
        Ok(self.end(result))
    }

    /// Makes the calling thread, which starts a limited wait, the owner. Returns the time at which
    /// the request is overdue.
    pub(super) fn own_by_thread(&mut self, now: Instant) -> Instant {
        self.unplug();
        self.runtime.drain();
        self.ticket.set_owner_thread();
        *self.first_wait.get_or_insert(now) + self.ticket.timeout()
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(in crate::runtime::requests) fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }

    /// Returns true if the request is done. Otherwise `waker` is woken at its end.
    pub(crate) fn poll(&mut self, waker: &Waker) -> bool {
        if self.ticket.set_owner_task(waker) {
            return true;
        }
        self.unplug();
        self.runtime.drain_unless_polled();
        self.runtime.wake_pollers_for(&self.ticket);
        self.ticket.is_done()
    }

    /// Returns the outcome and the buffer of a finished request.
    pub(crate) fn finish(self) -> Ended<B> {
        let result = self.ticket.result();
        self.end(result)
    }

    fn end(self, result: Result<(), RequestError>) -> Ended<B> {
        let Started { runtime, ticket, lent, .. } = self;
        let (buf, count) = lent.take_after(result.is_ok());
        runtime.idle_parts.put(ticket, count);
        (result, buf)
    }
}

impl<B: Send + 'static> Started<B> {
    /// Calls `done` with the outcome and the buffer at the end of the request. Calls it on this
    /// thread if the request is done already.
    pub(crate) fn then(self, done: impl FnOnce(Result<(), RequestError>, Option<B>) + Send + 'static) {
        let Started { runtime, ticket, lent, .. } = self;
        let own = Arc::clone(&ticket);
        let weak = Arc::downgrade(&runtime);
        let callback = Box::new(move |result: Result<(), RequestError>| {
            let (buf, count) = lent.take_after(result.is_ok());
            if let Some(runtime) = weak.upgrade() {
                runtime.idle_parts.put(own, count);
            }
            done(result, buf);
        });
        match ticket.set_owner_callback(callback) {
            Ok(()) => {
                runtime.drain_unless_polled();
                runtime.wake_pollers_for(&ticket);
            }
            Err(callback) => runtime.notify_owner(Notice::Run(callback, ticket.result())),
        }
    }
}
