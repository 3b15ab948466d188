//! The calling side. A caller polls for its own reply, and for those of others while it is at it.

mod left;
mod together;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use self::left::Left;
use super::{
    CALL_SLOTS, Cancel, FetchClient, Header, Kind, MAX_CALL, Messages, SEND_ID, StartedCalls, StartedReply,
    WaitingCalls, fetch::Stage,
};
use crate::{
    polling::{PollingMode, Retry},
    runtime::{CqWaiters, Notice, Ticket, WaitOutcome},
    session::RequestError,
    stats::Stats,
    verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WcStatus, WorkCompletion},
};

/// Whose the reply in a slot is.
#[derive(Debug)]
enum Owner {
    Caller(Arc<Ticket>),
    /// Nobody waits; a message comes.
    Started,
    /// Nobody waits; the answer will be in memory.
    Left,
    /// It was left, and the host has been asked for a message.
    Rung,
}

#[derive(Debug, Default)]
struct Slot {
    /// While a call is under way.
    owner: Option<Owner>,
    /// Its number, if its reply may come later; otherwise zero.
    number: u32,
    /// The reply comes later.
    deferred: bool,
    /// The reply is to be fetched.
    in_memory: bool,
    reply: Vec<u8>,
}

impl Slot {
    /// A call is put in it: from now on a message may answer it.
    fn begin(&mut self, owner: Owner, number: u32) {
        (self.owner, self.number) = (Some(owner), number);
        (self.deferred, self.in_memory) = (false, false);
    }
}

/// What a call has got in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    Reply,
    Promise,
}

#[derive(Debug)]
pub(crate) struct RpcClient {
    messages: Messages,
    cq_waiters: CqWaiters,
    slots: [Mutex<Slot>; CALL_SLOTS],
    free: Mutex<Vec<usize>>,
    freed: Condvar,
    dead: AtomicBool,
    /// From the first call that may be answered later.
    waiting: OnceLock<Arc<WaitingCalls>>,
    /// Held by who makes it.
    joining: Mutex<()>,
    started: StartedCalls,
    left: Left,
    /// If calls are made by fetching.
    fetch: Option<FetchClient>,
    stats: Arc<Stats>,
    timeout: Duration,
}

/// The only lane of its attendance.
const LANE: usize = 0;

impl RpcClient {
    /// `qp` is not connected yet: the receives have to be posted before the first message can come.
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
            cq_waiters: CqWaiters::new(LANE, cq, polling.0, polling.1),
            slots: Default::default(),
            free: Mutex::new((0..CALL_SLOTS).collect()),
            freed: Condvar::new(),
            dead: AtomicBool::new(false),
            waiting: OnceLock::new(),
            joining: Mutex::new(()),
            started: StartedCalls::new(LANE, started_reply),
            left: Left::default(),
            fetch: None,
            stats,
            timeout,
        })
    }

    /// With calls by fetching.
    pub(crate) fn fetching(self, fetch: Option<FetchClient>) -> RpcClient {
        RpcClient { fetch, ..self }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Calls and waits for the reply, for as long as a call may take.
    pub(crate) fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        check_length(request)?;
        let result = self.call_as(0, request, reply);
        if result.is_err() {
            self.stats.errors.inc();
        }
        result.map(|_| ())
    }

    /// Calls and waits for the reply, for as long as the session lives. `join` is called once, for the queue pair that late
    /// replies come on.
    pub(crate) fn call_waiting(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
        join: &dyn Fn() -> Result<WaitingCalls, String>,
    ) -> Result<(), RequestError> {
        check_length(request)?;
        let result = self.waiting(join).and_then(|waiting| {
            let mut call = waiting.number(cancel)?;
            match self.call_as(call.number, request, reply)? {
                Got::Reply => Ok(()),
                Got::Promise => waiting.wait(&mut call, reply, &self.stats, &|| self.fail()),
            }
        });
        if result.is_err() {
            self.stats.errors.inc();
        }
        result
    }

    /// Puts a call under way, as soon as there is a place for it. Its outcome goes to the session's [`StartedReply`].
    ///
    /// # Errors
    /// The call has not been made.
    pub(crate) fn start_call(&self, request: &[u8]) -> Result<(), RequestError> {
        check_length(request)?;
        let deadline = Instant::now() + self.timeout;
        // What has been answered gives its place back.
        self.gather(false);
        let slot = self
            .wait_until(self.started.place(), deadline)
            // Not all slots are held by calls that nobody polls for: see `started`.
            .and_then(|()| self.take_slot(deadline))
            .inspect_err(|_| self.stats.errors.inc())?;
        self.stats.calls.inc();
        self.stats.calls_started.inc();
        let mapped = self.fetch.as_ref().filter(|fetch| fetch.is_mapped());
        self.slots[slot].lock().begin(if mapped.is_some() { Owner::Left } else { Owner::Started }, 0);
        self.started.begin(slot, Instant::now() + self.timeout);
        match mapped {
            Some(fetch) => self.leave(fetch, slot, request),
            None => self.send_or_fail(Header::plain(slot), request),
        }
        Ok(())
    }

    /// Waits until all calls that were started before have been answered.
    pub(crate) fn finish_calls(&self) -> Result<(), RequestError> {
        let result = self.wait_until(self.started.replies(), Instant::now() + self.timeout);
        result.inspect_err(|_| self.stats.errors.inc())
    }

    /// Waits for a ticket, if there is one, serving others meanwhile.
    fn wait_until(
        &self,
        ticket: Result<Option<Arc<Ticket>>, RequestError>,
        deadline: Instant,
    ) -> Result<(), RequestError> {
        ticket?.map_or(Ok(()), |ticket| {
            // Who sleeps is woken by messages.
            self.gather(true);
            self.attend(&ticket, deadline)
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
            log::warn!("no queue pair for late replies: {e}");
            RequestError::Disconnected
        })?;
        let waiting = self.waiting.get_or_init(|| Arc::new(made));
        if self.is_dead() {
            // It was there too late to be failed with the rest.
            waiting.fail();
        }
        Ok(waiting)
    }

    /// Takes a call as far as its slot goes.
    fn call_as(&self, number: u32, request: &[u8], reply: &mut Vec<u8>) -> Result<Got, RequestError> {
        self.stats.calls.inc();
        let begun = Instant::now();
        let deadline = begun + self.timeout;
        let slot = self.take_slot(deadline)?;
        let (result, polled) = match &self.fetch {
            // One that may be answered later is a matter of messages.
            Some(fetch) if number == 0 => (self.call_by_fetch(fetch, slot, request, reply, deadline), false),
            _ => (self.call_in(slot, number, request, reply, deadline), true),
        };
        self.gather(false);
        // Nobody polls for what is fetched; replies to started calls are taken on the way.
        if !polled && self.started.count() > self.left.count() {
            self.cq_waiters.poll_until_empty(&self.stats, &|wcs| self.dispatch(wcs));
        }
        // Messages come in the order in which the host sends them: what was due before this call has not been answered until now.
        if result.is_ok() && self.has_overdue(begun, polled) {
            log::warn!(
                "the host has not answered a started call within {:?}: closing the session",
                self.timeout
            );
            self.fail();
        }
        // After a timeout the reply may still come: the session is dead then, and the slot's number means nothing.
        self.give_slot(slot);
        result
    }

    fn give_slot(&self, slot: usize) {
        self.free.lock().push(slot);
        self.freed.notify_one();
    }

    fn take_slot(&self, deadline: Instant) -> Result<usize, RequestError> {
        let mut free = self.free.lock();
        let mut timed_out = false;
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
            timed_out = self.freed.wait_until(&mut free, deadline).timed_out();
        }
        drop(free);
        // As any other timeout: the peer has not answered for as long as it may take.
        self.fail();
        Err(RequestError::Timeout(self.timeout))
    }

    fn call_in(
        &self,
        slot: usize,
        number: u32,
        request: &[u8],
        reply: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<Got, RequestError> {
        let ticket = self.begin_in(slot, number);
        self.send_or_fail(Header { slot, kind: Kind::Plain, number }, request);
        self.attend(&ticket, deadline)?;
        let mut entry = self.slots[slot].lock();
        std::mem::swap(&mut entry.reply, reply);
        Ok(if entry.deferred { Got::Promise } else { Got::Reply })
    }

    /// Puts a call of this thread in its slot, and gives what it waits on.
    fn begin_in(&self, slot: usize, number: u32) -> Arc<Ticket> {
        let ticket = Ticket::of_this_thread(1);
        ticket.posted_on(LANE);
        self.slots[slot].lock().begin(Owner::Caller(Arc::clone(&ticket)), number);
        ticket
    }

    /// Polls until the ticket is done. At its deadline the session fails, and the ticket with it.
    fn attend(&self, ticket: &Arc<Ticket>, deadline: Instant) -> Result<(), RequestError> {
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        let mut timed_out = false;
        while !ticket.is_done() {
            match self.cq_waiters.wait(ticket, deadline, &self.stats, &dispatch) {
                WaitOutcome::Done => {}
                WaitOutcome::TimedOut => {
                    timed_out = true;
                    self.fail();
                }
                WaitOutcome::Broken(e) => {
                    log::error!("{e}");
                    self.fail();
                }
            }
        }
        match ticket.result() {
            Err(_) if timed_out => Err(RequestError::Timeout(self.timeout)),
            other => other,
        }
    }

    /// A call whose request is written, and whose answer is fetched; where that takes long the rest of it is as with any call.
    fn call_by_fetch(
        &self,
        fetch: &FetchClient,
        slot: usize,
        request: &[u8],
        reply: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<Got, RequestError> {
        let ticket = self.begin_in(slot, 0);
        if self.is_dead() {
            // As in `send_or_fail`.
            self.fail();
        }
        let stage = fetch.call(slot, request, reply, &self.stats, || ticket.is_done());
        let answered = match stage {
            Ok(Stage::Answered) => Ok(()),
            Ok(Stage::Unanswered) => Err(RequestError::Unanswered),
            Ok(Stage::Ring { number }) => {
                self.stats.calls_rung.inc();
                self.send_or_fail(Header { slot, kind: Kind::Ring, number }, &[]);
                return self.take_message(fetch, slot, &ticket, reply, deadline);
            }
            Ok(Stage::Ended) => return self.take_message(fetch, slot, &ticket, reply, deadline),
            Ok(Stage::Nonsense | Stage::Left { .. }) => {
                log::warn!("the peer wrote what answers no call: closing the session");
                self.fail();
                Err(RequestError::Disconnected)
            }
            Err(e) => {
                self.fail();
                Err(if matches!(e, RequestError::Timeout(_)) { e } else { RequestError::Disconnected })
            }
        };
        let owner = self.slots[slot].lock().owner.take();
        if let Some(Owner::Caller(owner)) = owner {
            self.stats.calls_fetched.inc();
            self.stats.call_latency.record(owner.started().elapsed());
            self.tell(&owner, Ok(()));
        }
        // The end of the session may have been quicker.
        let settled = self.attend(&ticket, deadline);
        answered.and(settled).map(|()| Got::Reply)
    }

    /// Waits for the message that answers a call by fetching.
    fn take_message(
        &self,
        fetch: &FetchClient,
        slot: usize,
        ticket: &Arc<Ticket>,
        reply: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<Got, RequestError> {
        self.attend(ticket, deadline)?;
        let in_memory = {
            let mut entry = self.slots[slot].lock();
            std::mem::swap(&mut entry.reply, reply);
            entry.in_memory
        };
        if !in_memory {
            return Ok(Got::Reply);
        }
        match fetch.take(slot, reply, &self.stats) {
            Ok(Stage::Answered) => Ok(Got::Reply),
            Ok(Stage::Unanswered) => Err(RequestError::Unanswered),
            _ => {
                self.fail();
                Err(RequestError::Disconnected)
            }
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

    fn dispatch(&self, wcs: &[WorkCompletion]) {
        for wc in wcs {
            if wc.status != WcStatus::Success {
                self.fail();
            } else if wc.wr_id != SEND_ID {
                self.on_reply(wc);
            }
        }
    }

    fn on_reply(&self, wc: &WorkCompletion) {
        let owner = self.messages.header_of(wc).and_then(|header| {
            let mut entry = self.slots[header.slot].lock();
            // Only a call that has a number can be put off.
            if header.kind == Kind::Deferred && (header.number == 0 || header.number != entry.number) {
                return None;
            }
            let in_memory = header.kind == Kind::InMemory;
            if header.kind == Kind::Ring || in_memory && self.fetch.is_none() {
                return None;
            }
            let owner = entry.owner.take_if(|owner| match owner {
                Owner::Caller(_) | Owner::Rung => true,
                Owner::Started => !in_memory,
                Owner::Left => false,
            })?;
            entry.deferred = header.kind == Kind::Deferred;
            entry.in_memory = in_memory;
            // The caller gets this buffer for his own: they are kept from call to call.
            self.messages.take(wc, &mut entry.reply);
            let unanswered = header.kind == Kind::Unanswered;
            Some((owner, header.slot, if unanswered { Err(RequestError::Unanswered) } else { Ok(()) }))
        });
        let Some((owner, slot, result)) = owner else {
            log::warn!("the peer sent what answers no call: closing the session");
            self.fail();
            return;
        };
        if let Err(e) = self.messages.post_recv(wc.wr_id as usize) {
            log::debug!("receive: {e}");
            self.fail();
        }
        match owner {
            Owner::Caller(ticket) => {
                self.stats.call_latency.record(ticket.started().elapsed());
                self.tell(&ticket, result);
            }
            Owner::Started | Owner::Left | Owner::Rung => {
                // Nobody sleeps on the completion queue while this thread takes from it.
                self.end_started(slot, result);
            }
        }
    }

    /// The reply to a started call is in its slot, or in memory where the host has said so. True if somebody who waits was told.
    fn end_started(&self, slot: usize, mut result: Result<(), RequestError>) -> bool {
        let (mut bytes, in_memory) = {
            let mut entry = self.slots[slot].lock();
            (std::mem::take(&mut entry.reply), entry.in_memory)
        };
        if in_memory && let Some(fetch) = &self.fetch {
            result = match fetch.take(slot, &mut bytes, &self.stats) {
                Ok(Stage::Answered) => Ok(()),
                Ok(Stage::Unanswered) => Err(RequestError::Unanswered),
                _ => {
                    self.fail();
                    Err(RequestError::Disconnected)
                }
            };
        }
        self.started.report(result.map(|()| &bytes[..]));
        self.slots[slot].lock().reply = bytes;
        // Before another started call can have the slot.
        let told = self.started.end(slot);
        self.give_slot(slot);
        told.iter().for_each(|waiter| self.tell(waiter, Ok(())));
        !told.is_empty()
    }

    /// Callers block: a thread is all that there can be to wake.
    fn tell(&self, owner: &Ticket, result: Result<(), RequestError>) {
        if let (Notice::Unpark(thread), _) = owner.complete_one(Some(LANE), result) {
            self.stats.wakeups.inc();
            thread.unpark();
        }
    }

    /// Ends it: calls under way and later ones fail.
    pub(crate) fn fail(&self) {
        {
            // A caller that looks for a slot either sees this or is already waiting, and hears of it below.
            let _free = self.free.lock();
            self.dead.store(true, Ordering::Release);
        }
        self.messages.qp.to_error();
        if let Some(fetch) = &self.fetch {
            fetch.fail();
        }
        for slot in &self.slots {
            let owner = slot.lock().owner.take();
            match owner {
                Some(Owner::Caller(ticket)) => self.tell(&ticket, Err(RequestError::Disconnected)),
                Some(Owner::Started | Owner::Left | Owner::Rung) => {
                    self.started.report(Err(RequestError::Disconnected))
                }
                None => {}
            }
        }
        self.started.fail().iter().for_each(|waiter| self.tell(waiter, Err(RequestError::Disconnected)));
        self.freed.notify_all();
        if let Some(waiting) = self.waiting.get() {
            waiting.fail();
        }
        // Whoever sleeps on the completion queue has been served above.
        self.cq_waiters.wake();
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
