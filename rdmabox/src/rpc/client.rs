//! The calling side of RPC.
//!
//! A blocking caller polls the completion queue for its own reply, and dispatches the replies of
//! other callers meanwhile.
//!
//! # Concurrency
//! Called from any thread. `free`, each slot, and the locks of `parked_call` and `pipelined_call`
//! are independent of the completion queue's leader lock, which is held during `dispatch`.

mod blocking_call;
mod call_all;
mod fetched_call;
mod parked_call;
mod pending_call;
mod pipelined_call;
mod replies;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

pub(crate) use self::blocking_call::WaitingCalls;
use self::parked_call::ParkedCalls;
pub(crate) use self::pending_call::CallState;
use self::pending_call::PendingCalls;
use self::pipelined_call::StartedCalls;
pub use self::{blocking_call::Cancel, pipelined_call::StartedReply};
use super::{
    fetch::FetchClient,
    message::{CALL_SLOTS, Header, Kind, MAX_CALL, Messages},
};
use crate::{
    error::RequestError,
    polling::{PollingMode, Retry},
    runtime::{CqWaiters, ShortestTimeout, Ticket, WaitOutcome},
    stats::Stats,
    verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WorkCompletion},
};

/// The recipient of the reply in a slot.
#[derive(Debug)]
enum Owner {
    Caller(Arc<Ticket>),
    /// No waiting thread; the reply is a message.
    Started,
    /// No waiting thread; the reply will be in mapped memory.
    Parked,
    /// A parked call for which the host was asked to reply by message.
    Notified,
    /// A call whose owner polls, waits for or has dropped it.
    Pending(Arc<CallState>),
}

#[derive(Debug, Default)]
struct Slot {
    /// Recipient; `None` if no call is in flight.
    owner: Option<Owner>,
    /// Number of a call whose reply may be deferred; otherwise 0.
    number: u32,
    /// The host has deferred the reply.
    deferred: bool,
    /// The reply has to be fetched from memory.
    in_memory: bool,
    reply: Vec<u8>,
}

impl Slot {
    /// Occupies the slot with a call. A message may answer it from now on.
    fn begin(&mut self, owner: Owner, number: u32) {
        (self.owner, self.number) = (Some(owner), number);
        (self.deferred, self.in_memory) = (false, false);
    }
}

/// The content of a slot after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOutcome {
    Reply,
    Deferred,
}

/// The time at which a call fails, and its timeout.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    fn after(timeout: Duration) -> Deadline {
        Deadline { at: Instant::now() + timeout, timeout }
    }
}

#[derive(Debug)]
pub(crate) struct RpcClient {
    messages: Messages,
    cq_waiters: CqWaiters,
    slots: [Mutex<Slot>; CALL_SLOTS],
    free: Mutex<Vec<usize>>,
    freed: Condvar,
    dead: AtomicBool,
    /// Set by the first call whose reply may be deferred.
    waiting: OnceLock<Arc<WaitingCalls>>,
    /// Held while a thread initializes `waiting`.
    joining: Mutex<()>,
    started: StartedCalls,
    parked: ParkedCalls,
    pending: PendingCalls,
    /// Set if calls use fetching.
    fetch: Option<FetchClient>,
    stats: Arc<Stats>,
    timeout: Duration,
    shortest_timeout: ShortestTimeout,
}

/// Index of the client's only completion queue.
const CQ_INDEX: usize = 0;

impl RpcClient {
    /// Creates a client on `qp`, which must not be connected yet: the receives are posted first.
    pub(crate) fn new(
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        cq: Arc<dyn CompletionQueue>,
        polling: (PollingMode, Retry),
        started_reply: Option<StartedReply>,
        stats: Arc<Stats>,
        timeout: Duration,
    ) -> Result<RpcClient, VerbsError> {
        Ok(RpcClient {
            messages: Messages::new(pd, qp, CALL_SLOTS)?,
            cq_waiters: CqWaiters::new(CQ_INDEX, cq, polling.0, polling.1),
            slots: Default::default(),
            free: Mutex::new((0..CALL_SLOTS).collect()),
            freed: Condvar::new(),
            dead: AtomicBool::new(false),
            waiting: OnceLock::new(),
            joining: Mutex::new(()),
            started: StartedCalls::new(CQ_INDEX, started_reply),
            parked: ParkedCalls::default(),
            pending: PendingCalls::default(),
            fetch: None,
            stats,
            timeout,
            shortest_timeout: ShortestTimeout::new(timeout),
        })
    }

    /// Makes calls by fetching if `fetch` is set.
    pub(crate) fn fetching(self, fetch: Option<FetchClient>) -> RpcClient {
        RpcClient { fetch, ..self }
    }

    /// Records a timeout that calls may have from now on.
    pub(crate) fn note_timeout(&self, timeout: Duration) {
        if self.shortest_timeout.note(timeout) {
            self.interrupt_call_poller();
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Calls, and waits for the reply up to `timeout`.
    pub(crate) fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), RequestError> {
        check_length(request)?;
        let result = self.call_once(0, request, reply, timeout);
        if result.is_err() {
            self.stats.errors.inc();
        }
        result.map(|_| ())
    }

    /// Calls, and waits for the reply as long as the session lives. `join` is called once, to
    /// connect the queue pair for deferred replies.
    pub(crate) fn call_waiting(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
        timeout: Duration,
        join: &dyn Fn() -> Result<WaitingCalls, String>,
    ) -> Result<(), RequestError> {
        check_length(request)?;
        let result = self.waiting(join).and_then(|waiting| {
            let mut call = waiting.number(cancel)?;
            match self.call_once(call.number, request, reply, timeout)? {
                CallOutcome::Reply => Ok(()),
                CallOutcome::Deferred => waiting.wait(&mut call, reply, &self.stats, &|| self.fail()),
            }
        });
        if result.is_err() {
            self.stats.errors.inc();
        }
        result
    }

    /// Starts a call as soon as it has a place. Its outcome goes to the session's [`StartedReply`].
    ///
    /// # Errors
    /// The call was not made.
    pub(crate) fn start_call(&self, request: &[u8], timeout: Duration) -> Result<(), RequestError> {
        check_length(request)?;
        let deadline = Deadline::after(timeout);
        // Answered calls return their places.
        self.collect_parked(false);
        let slot = self
            .wait_until(self.started.place(), deadline)
            // Blocking callers hold at least half of the slots, so a slot is returned: see
            // `pipelined_call`.
            .and_then(|()| self.take_slot(deadline))
            .inspect_err(|_| self.stats.errors.inc())?;
        self.stats.calls.inc();
        self.stats.calls_started.inc();
        let mapped = self.fetch.as_ref().filter(|fetch| fetch.is_mapped());
        self.slots[slot].lock().begin(if mapped.is_some() { Owner::Parked } else { Owner::Started }, 0);
        self.started.begin(slot, Instant::now() + timeout);
        match mapped {
            Some(fetch) => self.park(fetch, slot, request),
            None => self.send_or_fail(Header::plain(slot), request),
        }
        Ok(())
    }

    /// Waits until all calls started before have been answered.
    pub(crate) fn finish_calls(&self, timeout: Duration) -> Result<(), RequestError> {
        let result = self.wait_until(self.started.replies(), Deadline::after(timeout));
        result.inspect_err(|_| self.stats.errors.inc())
    }

    /// Waits for a ticket, if there is one, and dispatches the replies of other callers meanwhile.
    fn wait_until(
        &self,
        ticket: Result<Option<Arc<Ticket>>, RequestError>,
        deadline: Deadline,
    ) -> Result<(), RequestError> {
        ticket?.map_or(Ok(()), |ticket| {
            // Parked calls have to be answered by message: only a message wakes a sleeping thread.
            self.collect_parked(true);
            self.wait_for(&ticket, deadline)
        })
    }

    fn waiting(
        &self,
        join: &dyn Fn() -> Result<WaitingCalls, String>,
    ) -> Result<&Arc<WaitingCalls>, RequestError> {
        if let Some(waiting) = self.waiting.get() {
            return Ok(waiting);
        }
        let _joining = self.joining.lock();
        if let Some(waiting) = self.waiting.get() {
            return Ok(waiting);
        }
        let made = join().map_err(|e| {
            log::warn!("cannot connect the queue pair for deferred replies: {e}");
            RequestError::Disconnected
        })?;
        let waiting = self.waiting.get_or_init(|| Arc::new(made));
        if self.is_dead() {
            // Initialized after the session failed, so it has to be failed here.
            waiting.fail();
        }
        Ok(waiting)
    }

    /// Makes a call in a slot, up to its reply or its deferral.
    fn call_once(
        &self,
        number: u32,
        request: &[u8],
        reply: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<CallOutcome, RequestError> {
        self.stats.calls.inc();
        let begun = Instant::now();
        let deadline = Deadline { at: begun + timeout, timeout };
        let slot = self.take_slot(deadline)?;
        let (result, polled) = match &self.fetch {
            // A call whose reply may be deferred always goes by message.
            Some(fetch) if number == 0 => (self.call_by_fetch(fetch, slot, request, reply, deadline), false),
            _ => (self.call_by_message(slot, number, request, reply, deadline), true),
        };
        self.collect_parked(false);
        // A call by fetching does not poll the completion queue, so replies to started calls are
        // taken here.
        if !polled && self.started.count() > self.parked.count() {
            self.cq_waiters.poll_until_empty(&self.stats, &|wcs| self.dispatch(wcs));
        }
        // Messages arrive in the order in which the host sends them. A started call that was due
        // before this call is therefore unanswered.
        if result.is_ok() && self.has_overdue(begun, polled) {
            log::warn!(
                "the host has not answered a started call within {:?}: closing the session",
                self.timeout
            );
            self.fail();
        }
        // After a timeout the reply may still arrive. The session is dead then, so the slot may be
        // reused.
        self.give_slot(slot);
        result
    }

    fn give_slot(&self, slot: usize) {
        self.free.lock().push(slot);
        self.freed.notify_one();
        if self.has_queued() {
            self.send_queued();
        }
    }

    fn take_slot(&self, deadline: Deadline) -> Result<usize, RequestError> {
        let mut free = self.free.lock();
        let (mut timed_out, mut woken) = (false, false);
        loop {
            if self.is_dead() {
                return Err(RequestError::Disconnected);
            }
            if let Some(slot) = free.pop() {
                return Ok(slot);
            }
            if timed_out {
                break;
            }
            if !std::mem::replace(&mut woken, true) {
                // No thread may be polling for the pending calls that have slots, and answers to
                // started calls may stand in memory.
                MutexGuard::unlocked(&mut free, || {
                    self.wake_call_poller();
                    self.collect_parked(true);
                });
                continue;
            }
            timed_out = self.freed.wait_until(&mut free, deadline.at).timed_out();
        }
        drop(free);
        // Handled like any other timeout: the peer did not answer in time.
        self.fail();
        Err(RequestError::Timeout(deadline.timeout))
    }

    fn call_by_message(
        &self,
        slot: usize,
        number: u32,
        request: &[u8],
        reply: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<CallOutcome, RequestError> {
        let ticket = self.begin_call(slot, number, Some(reply));
        self.send_or_fail(Header { slot, kind: Kind::Plain, number }, request);
        self.wait_for(&ticket, deadline)?;
        let mut entry = self.slots[slot].lock();
        std::mem::swap(&mut entry.reply, reply);
        Ok(if entry.deferred { CallOutcome::Deferred } else { CallOutcome::Reply })
    }

    /// Occupies a slot with a call of this thread. Returns the ticket to wait for. The slot has the
    /// buffer `lent` until the caller exchanges the two again.
    fn begin_call(&self, slot: usize, number: u32, lent: Option<&mut Vec<u8>>) -> Arc<Ticket> {
        let ticket = Ticket::of_this_thread(1);
        ticket.posted_on(CQ_INDEX);
        let mut entry = self.slots[slot].lock();
        entry.begin(Owner::Caller(Arc::clone(&ticket)), number);
        if let Some(lent) = lent {
            std::mem::swap(&mut entry.reply, lent);
        }
        ticket
    }

    /// Polls until the ticket is done. At the deadline the session fails, which completes the
    /// ticket.
    fn wait_for(&self, ticket: &Arc<Ticket>, deadline: Deadline) -> Result<(), RequestError> {
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        let mut timed_out = false;
        while !ticket.is_done() {
            match self.cq_waiters.wait(ticket, deadline.at, &self.stats, &dispatch) {
                WaitOutcome::Done => {}
                WaitOutcome::TimedOut => {
                    timed_out = true;
                    self.fail();
                }
                WaitOutcome::Broken(e) => {
                    log::error!("message completion queue: {e}");
                    self.fail();
                }
            }
        }
        match ticket.result() {
            Err(_) if timed_out => Err(RequestError::Timeout(deadline.timeout)),
            other => other,
        }
    }

    /// Sends the request of a call whose slot is filled.
    fn send_or_fail(&self, header: Header, request: &[u8]) {
        if self.is_dead() {
            // The slot was filled too late to be failed with the others.
            self.fail();
            return;
        }
        match self.messages.send(header, request) {
            Ok(posts) => {
                self.stats.call_messages.inc();
                self.stats.call_doorbells.add(posts);
            }
            Err(e) => {
                log::debug!("call: {e}");
                self.fail();
            }
        }
    }
}

fn check_length(request: &[u8]) -> Result<(), RequestError> {
    match request.len() > MAX_CALL {
        false => Ok(()),
        true => {
            let text = format!("a call of {} bytes, the limit is {MAX_CALL}", request.len());
            Err(RequestError::Invalid(text))
        }
    }
}
