//! The client's side of deferred replies: calls that wait until the session ends or they are
//! cancelled.
//!
//! A waiting thread sleeps on the completion queue for deferred replies, or is parked while
//! another thread does. It uses no processor time, and ordinary calls do not touch this queue.
//!
//! # Concurrency
//! Called from any thread. Lock order: `Cancel`, then `calls`. Tickets are completed without
//! these locks.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    error::RequestError,
    polling::{DEFAULT_MAX_RETRY, PollingMode, Retry},
    rpc::message::{DEFERRED_SLOTS, Header, Kind, MAX_WAITING, Messages, SEND_ID, rejection},
    runtime::{CqWaiters, Notice, Ticket, WaitOutcome},
    stats::Stats,
    verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WcStatus, WorkCompletion},
};

/// Index of the only completion queue.
const CQ_INDEX: usize = 0;
/// Length of one wait. The wait is repeated, so the value does not matter.
const WAIT_SLICE: Duration = Duration::from_secs(24 * 60 * 60);

/// Cancels waiting calls ([`Session::call_waiting`](crate::Session::call_waiting)). Clones share
/// their state. A handle that was cancelled stays so: later calls with it are cancelled at once.
/// [Calls and deferred replies](crate::guide#calls-and-deferred-replies) has an example.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<Cancelling>>);

#[derive(Default)]
struct Cancelling {
    cancelled: bool,
    /// The calls that wait with this handle.
    calls: Vec<(Weak<WaitingCalls>, u32)>,
}

impl Cancel {
    /// Creates an unused handle.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the present and future calls of this handle with [`RequestError::Cancelled`]. A reply
    /// that has arrived already is still delivered.
    pub fn cancel(&self) {
        let calls = {
            let mut state = self.0.lock();
            state.cancelled = true;
            std::mem::take(&mut state.calls)
        };
        for (waiting, number) in calls {
            if let Some(waiting) = waiting.upgrade() {
                waiting.end_call(number, RequestError::Cancelled);
            }
        }
    }

    /// Returns true after [`cancel`](Self::cancel).
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

/// State of a waiting call.
#[derive(Debug)]
enum Call {
    Waiting(Arc<Ticket>),
    /// The reply, not yet taken by the caller.
    Replied(Vec<u8>),
    /// The caller was notified of an error and has not returned yet.
    Ended,
    /// The caller has returned, and the reply has not arrived yet.
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

/// A call with its number. Dropping it removes the call.
pub(crate) struct NumberedCall<'a> {
    waiting: &'a Arc<WaitingCalls>,
    cancel: &'a Cancel,
    ticket: Arc<Ticket>,
    pub(crate) number: u32,
    /// The host has deferred the reply.
    promised: bool,
}

impl Drop for NumberedCall<'_> {
    fn drop(&mut self) {
        self.cancel.remove(self.waiting, self.number);
        let mut calls = self.waiting.calls.lock();
        match calls.by_number.remove(&self.number) {
            Some(Call::Waiting(ticket)) => {
                // The ticket belongs to this thread, which needs no notification.
                let _ = ticket.complete_one(Some(CQ_INDEX), Ok(()));
            }
            Some(Call::Ended) if self.promised => {
                calls.by_number.insert(self.number, Call::Abandoned);
            }
            _ => {}
        }
    }
}

impl WaitingCalls {
    /// Creates the calls of a session on `qp`, which must not be connected yet: the receives are
    /// posted first.
    pub(crate) fn new(
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        cq: Arc<dyn CompletionQueue>,
    ) -> Result<WaitingCalls, VerbsError> {
        let retry = Retry::Fixed(DEFAULT_MAX_RETRY);
        Ok(WaitingCalls {
            messages: Messages::new(pd, qp, DEFERRED_SLOTS)?,
            // Waits are long, so a thread sleeps without polling first.
            cq_waiters: CqWaiters::new(CQ_INDEX, cq, PollingMode::EventBatch, retry),
            calls: Mutex::default(),
        })
    }

    /// Assigns a number to a call of this thread.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if too many calls wait, [`RequestError::Cancelled`],
    /// [`RequestError::Disconnected`].
    pub(crate) fn number<'a>(
        self: &'a Arc<Self>,
        cancel: &'a Cancel,
    ) -> Result<NumberedCall<'a>, RequestError> {
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
            ticket.posted_on(CQ_INDEX);
            calls.by_number.insert(number, Call::Waiting(Arc::clone(&ticket)));
            number
        };
        let numbered_call = NumberedCall { waiting: self, cancel, ticket, number, promised: false };
        cancel.add(self, number)?;
        Ok(numbered_call)
    }

    /// Waits for the deferred reply, and dispatches the replies of other callers meanwhile. Calls
    /// `failed` if the session has to end.
    pub(crate) fn wait(
        &self,
        call: &mut NumberedCall<'_>,
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
                self.cq_waiters.wait(&call.ticket, Instant::now() + WAIT_SLICE, stats, &dispatch)
            {
                log::error!("message completion queue: {e}");
                failed();
            }
        }
        if let Some(Call::Replied(bytes)) = self.calls.lock().by_number.get_mut(&call.number) {
            std::mem::swap(reply, bytes);
        }
        call.ticket.result()
    }

    /// Dispatches replies. Returns false if the session has to end.
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
            log::warn!("the peer sent a malformed deferred reply: closing the session");
            return false;
        };
        let mut result = match header.kind {
            Kind::Plain | Kind::Rejected => Ok(()),
            Kind::Unanswered => Err(RequestError::Unanswered),
            Kind::Deferred | Kind::Notification | Kind::InMemory => {
                log::warn!("the peer deferred a reply twice: closing the session");
                return false;
            }
        };
        let owner = {
            let mut calls = self.calls.lock();
            match calls.by_number.remove(&header.number) {
                Some(Call::Waiting(ticket)) => {
                    let mut bytes = Vec::new();
                    self.messages.take(wc, &mut bytes);
                    if header.kind == Kind::Rejected {
                        result = Err(rejection(&bytes));
                    }
                    calls.by_number.insert(header.number, Call::Replied(bytes));
                    Some(ticket)
                }
                Some(Call::Abandoned) => None,
                // The caller was notified of an error, and does not know yet that the reply has
                // arrived.
                Some(Call::Ended) => {
                    calls.by_number.insert(header.number, Call::Replied(Vec::new()));
                    None
                }
                Some(Call::Replied(_)) | None => {
                    log::warn!("the peer sent a deferred reply that answers no call: closing the session");
                    return false;
                }
            }
        };
        let receipt = Header { kind: Kind::Plain, ..header };
        let posted =
            self.messages.post_recv(wc.wr_id as usize).and_then(|()| self.messages.send(receipt, &[]));
        if let Some(owner) = owner {
            notify(&owner, result, stats);
        }
        if let Err(e) = &posted {
            log::debug!("deferred replies: {e}");
        }
        posted.is_ok()
    }

    /// Ends a call that is still waiting.
    fn end_call(&self, number: u32, why: RequestError) {
        let owner = self.calls.lock().end(number);
        if let Some(owner) = owner {
            if let (Notice::Unpark(thread), _) = owner.complete_one(Some(CQ_INDEX), Err(why)) {
                thread.unpark();
            }
            // Its thread may sleep on the completion queue.
            self.cq_waiters.wake();
        }
    }

    /// Fails the session's waiting calls, now and later.
    pub(crate) fn fail(&self) {
        let numbers: Vec<u32> = {
            let mut calls = self.calls.lock();
            calls.dead = true;
            calls.by_number.keys().copied().collect()
        };
        self.messages.qp.to_error();
        numbers.into_iter().for_each(|number| self.end_call(number, RequestError::Disconnected));
    }
}

impl Calls {
    /// Returns an unused number. There are more numbers than calls.
    fn unused(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.by_number.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Marks a waiting call as ended. Returns its ticket, or `None` if it does not wait.
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

fn notify(owner: &Ticket, result: Result<(), RequestError>, stats: &Stats) {
    if let (Notice::Unpark(thread), _) = owner.complete_one(Some(CQ_INDEX), result) {
        stats.wakeups.inc();
        thread.unpark();
    }
}
