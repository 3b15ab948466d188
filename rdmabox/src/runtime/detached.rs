//! Requests that are started and waited for later, awaited, or reported to a callback.

use std::{sync::Arc, task::Waker};

use super::{Runtime, Ticket, ticket::Attendee};
use crate::{
    memory::{Lent, LoanCount},
    session::RequestError,
    sync::atomic::Ordering,
    verbs::{RemoteAddr, WorkCompletion},
};

/// What a started request needs that does not depend on its buffer, between two uses.
#[derive(Debug)]
pub(crate) struct Idle {
    ticket: Arc<Ticket>,
    count: LoanCount,
}

/// Kept for later requests; more are made while more are under way.
const KEPT: usize = 1024;

/// A request that was started. Its buffer is out until it is done.
#[derive(Debug)]
pub(crate) struct Started<B> {
    runtime: Arc<Runtime>,
    ticket: Arc<Ticket>,
    lent: Lent<B>,
}

impl Runtime {
    /// Takes a ticket for `count` requests and a count for the loans of their buffer.
    pub(crate) fn take_idle(&self, count: usize) -> (Arc<Ticket>, LoanCount) {
        // The oldest: the most likely to be held by nobody else any more.
        match self.idle_started.lock().pop_front() {
            Some(idle) => (Ticket::of_nobody(count, Some(idle.ticket)), idle.count),
            None => (Ticket::of_nobody(count, None), LoanCount::default()),
        }
    }

    fn put_idle(&self, ticket: Arc<Ticket>, count: LoanCount) {
        let mut idle = self.idle_started.lock();
        if idle.len() < KEPT {
            idle.push_back(Idle { ticket, count });
        }
    }

    /// Starts requests of one direction that use `lent`.
    pub(crate) fn begin(
        &self,
        write: bool,
        count: usize,
        requests: impl Iterator<Item = (RemoteAddr, crate::memory::Loan)>,
        ticket: &Arc<Ticket>,
    ) {
        self.queued.fetch_add(1, Ordering::SeqCst);
        let direction = self.queue(write, count, requests, ticket);
        if !self.posts_later(direction) {
            self.kick(direction);
            self.glance(ticket);
        }
    }

    /// Where posting executes, a request is done when it is posted: it is reported at once, if nobody is about to.
    fn glance(&self, ticket: &Ticket) {
        if self.executes_at_post
            && !super::in_callback()
            && let Some(attendance) = ticket.unsettled_lane()
            && !self.attendances[attendance].has_poller()
        {
            let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
            self.attendances[attendance].glance(&self.stats, &dispatch);
        }
    }

    /// Sees to it that a ticket that nobody waits for is attended.
    fn attend_detached(&self, ticket: &Ticket) {
        let mut posted = false;
        for attendance in 0..self.attendances.len() {
            if !ticket.is_settled_on(attendance) {
                posted = true;
                self.drive(attendance);
            }
        }
        if !posted && !ticket.is_done() {
            self.drive_what_was_started();
        }
    }
}

impl<B> Started<B> {
    pub(crate) fn new(runtime: Arc<Runtime>, ticket: Arc<Ticket>, lent: Lent<B>) -> Started<B> {
        Started { runtime, ticket, lent }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits until it is done.
    pub(crate) fn wait(self) -> (Result<(), RequestError>, Option<B>) {
        self.runtime.post_held();
        self.ticket.own();
        let result = self.runtime.wait(&self.ticket);
        (result, self.over())
    }

    /// True if it is done; otherwise `waker` is woken when it is.
    pub(crate) fn poll(&self, waker: &Waker) -> bool {
        if self.ticket.own_by_task(waker) {
            return true;
        }
        self.runtime.post_held();
        self.runtime.attend_detached(&self.ticket);
        self.ticket.is_done()
    }

    /// The outcome of one that is done, and its buffer.
    pub(crate) fn finish(self) -> (Result<(), RequestError>, Option<B>) {
        let result = self.ticket.result();
        (result, self.over())
    }

    fn over(self) -> Option<B> {
        let Started { runtime, ticket, lent } = self;
        let (buf, count) = lent.take();
        runtime.put_idle(ticket, count);
        buf
    }
}

impl<B: Send + 'static> Started<B> {
    /// Has `done` run with the outcome and the buffer when it is done: on this thread if it is already.
    pub(crate) fn then(self, done: impl FnOnce(Result<(), RequestError>, Option<B>) + Send + 'static) {
        let Started { runtime, ticket, lent } = self;
        let own = Arc::clone(&ticket);
        let weak = Arc::downgrade(&runtime);
        let callback = Box::new(move |result| {
            let (buf, count) = lent.take();
            if let Some(runtime) = weak.upgrade() {
                runtime.put_idle(own, count);
            }
            done(result, buf);
        });
        match ticket.own_by_callback(callback) {
            Ok(()) => runtime.attend_detached(&ticket),
            Err(callback) => runtime.tell(super::Notice::Run(callback, ticket.result())),
        }
    }
}
