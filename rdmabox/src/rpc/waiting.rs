//! The client's side of late replies: calls that wait for as long as the session lives, or until they are cancelled.
//!
//! Who waits sleeps on the completion queue of these replies, or is parked while another one does; no processor time
//! goes by, and calls that are answered at once do not come by here.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{Header, Kind, LATE_SLOTS, MAX_WAITING, Messages, SEND_ID};
use crate::{
    polling::{DEFAULT_MAX_RETRY, PollingMode, Retry},
    runtime::{CqWaiters, Notice, Ticket, WaitOutcome},
    session::RequestError,
    stats::Stats,
    verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WcStatus, WorkCompletion},
};

/// The only lane of its attendance.
const LANE: usize = 0;
/// How long one look for a reply lasts at most; then comes the next. Nothing depends on it.
const LOOK: Duration = Duration::from_secs(24 * 60 * 60);

/// Ends waiting calls early ([`Session::call_waiting`](crate::Session::call_waiting)). Clones stand for the same.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<Cancelling>>);

#[derive(Default)]
struct Cancelling {
    cancelled: bool,
    /// The calls that wait with it.
    calls: Vec<(Weak<WaitingCalls>, u32)>,
}

impl Cancel {
    /// One that has not been used.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the calls that wait with it, and those that are to come, with
    /// [`RequestError::Cancelled`]. A reply that is there already still counts.
    pub fn cancel(&self) {
        let calls = {
            let mut state = self.0.lock();
            state.cancelled = true;
            std::mem::take(&mut state.calls)
        };
        for (waiting, number) in calls {
            if let Some(waiting) = waiting.upgrade() {
                waiting.give_up(number, RequestError::Cancelled);
            }
        }
    }

    /// True from [`cancel`](Self::cancel) on.
    pub fn is_cancelled(&self) -> bool {
        self.0.lock().cancelled
    }

    fn add(&self, waiting: &Arc<WaitingCalls>, number: u32) -> Result<(), RequestError> {
        let mut state = self.0.lock();
        if state.cancelled {
            return Err(RequestError::Cancelled);
        }
        state.calls.push((Arc::downgrade(waiting), number));
        Ok(())
    }

    fn remove(&self, waiting: &Arc<WaitingCalls>, number: u32) {
        let is_it = |(of, this): &(Weak<WaitingCalls>, u32)| {
            *this == number && std::ptr::eq(of.as_ptr(), Arc::as_ptr(waiting))
        };
        self.0.lock().calls.retain(|call| !is_it(call));
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

/// One call.
#[derive(Debug)]
enum Call {
    Waiting(Arc<Ticket>),
    /// Its caller will look.
    Replied(Vec<u8>),
    /// Its caller has been told why, and will look.
    Ended,
    /// Its caller has gone; the reply is still to come.
    Abandoned,
}

#[derive(Debug, Default)]
struct Calls {
    last: u32,
    by_number: HashMap<u32, Call>,
    dead: bool,
}

/// The waiting calls of a session.
#[derive(Debug)]
pub(crate) struct WaitingCalls {
    messages: Messages,
    cq_waiters: CqWaiters,
    calls: Mutex<Calls>,
}

/// A call that has its number. Dropping it forgets the call.
pub(super) struct Numbered<'a> {
    waiting: &'a Arc<WaitingCalls>,
    cancel: &'a Cancel,
    ticket: Arc<Ticket>,
    pub(super) number: u32,
    /// The host has promised a reply.
    promised: bool,
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        self.cancel.remove(self.waiting, self.number);
        let mut calls = self.waiting.calls.lock();
        match calls.by_number.remove(&self.number) {
            Some(Call::Waiting(ticket)) => {
                // This thread's own: nobody is to be told.
                let _ = ticket.complete_one(Some(LANE), Ok(()));
            }
            Some(Call::Ended) if self.promised => {
                calls.by_number.insert(self.number, Call::Abandoned);
            }
            _ => {}
        }
    }
}

impl WaitingCalls {
    /// `qp` is not connected yet: the receives have to be posted before the first message can come.
    pub(crate) fn new(
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        cq: Arc<dyn CompletionQueue>,
    ) -> Result<WaitingCalls, VerbsError> {
        let retry = Retry::Fixed(DEFAULT_MAX_RETRY);
        Ok(WaitingCalls {
            messages: Messages::new(pd, qp, LATE_SLOTS)?,
            // Waits are long: no polling before a sleep.
            cq_waiters: CqWaiters::new(LANE, cq, PollingMode::EventBatch, retry),
            calls: Mutex::default(),
        })
    }

    /// Gives a call of this thread its number.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if too many wait already, [`RequestError::Cancelled`], [`RequestError::Disconnected`].
    pub(super) fn number<'a>(self: &'a Arc<Self>, cancel: &'a Cancel) -> Result<Numbered<'a>, RequestError> {
        let ticket = Ticket::of_this_thread(1);
        let number = {
            let mut calls = self.calls.lock();
            if calls.dead {
                return Err(RequestError::Disconnected);
            }
            if calls.by_number.len() >= MAX_WAITING {
                return Err(RequestError::Invalid(format!("{MAX_WAITING} calls are waiting already")));
            }
            let number = calls.unused();
            ticket.posted_on(LANE);
            calls.by_number.insert(number, Call::Waiting(Arc::clone(&ticket)));
            number
        };
        let numbered = Numbered { waiting: self, cancel, ticket, number, promised: false };
        cancel.add(self, number)?;
        Ok(numbered)
    }

    /// Waits for the late reply, serving others meanwhile; `failed` is called if the session has to end for it.
    pub(super) fn wait(
        &self,
        call: &mut Numbered<'_>,
        reply: &mut Vec<u8>,
        stats: &Stats,
        failed: &dyn Fn(),
    ) -> Result<(), RequestError> {
        call.promised = true;
        let dispatch = |wcs: &[WorkCompletion]| {
            if !self.dispatch(wcs, stats) {
                failed();
            }
        };
        while !call.ticket.is_done() {
            if let WaitOutcome::Broken(e) =
                self.cq_waiters.wait(&call.ticket, Instant::now() + LOOK, stats, &dispatch)
            {
                log::error!("{e}");
                failed();
            }
        }
        if let Some(Call::Replied(bytes)) = self.calls.lock().by_number.get_mut(&call.number) {
            std::mem::swap(reply, bytes);
        }
        call.ticket.result()
    }

    /// False if the session has to end.
    #[must_use]
    fn dispatch(&self, wcs: &[WorkCompletion], stats: &Stats) -> bool {
        wcs.iter().all(|wc| match wc.status {
            WcStatus::Success if wc.wr_id == SEND_ID => true,
            WcStatus::Success => self.on_reply(wc, stats),
            _ => false,
        })
    }

    #[must_use]
    fn on_reply(&self, wc: &WorkCompletion, stats: &Stats) -> bool {
        let Some(header) = self.messages.header_of(wc) else {
            log::warn!("the peer sent what is no late reply: closing the session");
            return false;
        };
        let result = match header.kind {
            Kind::Plain => Ok(()),
            Kind::Unanswered => Err(RequestError::Unanswered),
            Kind::Deferred | Kind::Ring | Kind::InMemory => {
                log::warn!("the peer put off a reply twice: closing the session");
                return false;
            }
        };
        let owner = {
            let mut calls = self.calls.lock();
            match calls.by_number.remove(&header.number) {
                Some(Call::Waiting(ticket)) => {
                    let mut bytes = Vec::new();
                    self.messages.take(wc, &mut bytes);
                    calls.by_number.insert(header.number, Call::Replied(bytes));
                    Some(ticket)
                }
                Some(Call::Abandoned) => None,
                // Given up, but its caller does not know yet that there is nothing to come any more.
                Some(Call::Ended) => {
                    calls.by_number.insert(header.number, Call::Replied(Vec::new()));
                    None
                }
                Some(Call::Replied(_)) | None => {
                    log::warn!("the peer sent a late reply that answers no call: closing the session");
                    return false;
                }
            }
        };
        let receipt = Header { kind: Kind::Plain, ..header };
        let posted =
            self.messages.post_recv(wc.wr_id as usize).and_then(|()| self.messages.send(receipt, &[]));
        if let Some(owner) = owner {
            tell(&owner, result, stats);
        }
        if let Err(e) = &posted {
            log::debug!("late replies: {e}");
        }
        posted.is_ok()
    }

    /// Ends a call that still waits.
    fn give_up(&self, number: u32, why: RequestError) {
        let owner = self.calls.lock().end(number);
        if let Some(owner) = owner {
            if let (Notice::Unpark(thread), _) = owner.complete_one(Some(LANE), Err(why)) {
                thread.unpark();
            }
            // It may be the one that sleeps on the completion queue.
            self.cq_waiters.wake();
        }
    }

    /// Ends it: calls that wait fail.
    pub(super) fn fail(&self) {
        let numbers: Vec<u32> = {
            let mut calls = self.calls.lock();
            calls.dead = true;
            calls.by_number.keys().copied().collect()
        };
        self.messages.qp.to_error();
        numbers.into_iter().for_each(|number| self.give_up(number, RequestError::Disconnected));
    }
}

impl Calls {
    /// A number that no call has; there are more than calls can be.
    fn unused(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.by_number.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// The ticket of a call that waits, which does so no more.
    fn end(&mut self, number: u32) -> Option<Arc<Ticket>> {
        let call = self.by_number.get_mut(&number)?;
        match std::mem::replace(call, Call::Ended) {
            Call::Waiting(ticket) => Some(ticket),
            other => {
                *call = other;
                None
            }
        }
    }
}

fn tell(owner: &Ticket, result: Result<(), RequestError>, stats: &Stats) {
    if let (Notice::Unpark(thread), _) = owner.complete_one(Some(LANE), result) {
        stats.wakeups.inc();
        thread.unpark();
    }
}
