//! The calling side. A caller polls for its own reply, and for those of others while it is at it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{CALL_SLOTS, Cancel, Header, Kind, MAX_CALL, Messages, SEND_ID, WaitingCalls};
use crate::{
    polling::{PollingMode, Retry},
    runtime::{Attendance, Notice, Ticket, Waited},
    session::RequestError,
    stats::Stats,
    verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WcStatus, WorkCompletion},
};

#[derive(Debug, Default)]
struct Slot {
    /// Who waits for the reply.
    ticket: Option<Arc<Ticket>>,
    /// Its number, if its reply may come later; otherwise zero.
    number: u32,
    /// The reply comes later.
    deferred: bool,
    reply: Vec<u8>,
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
    attendance: Attendance,
    slots: [Mutex<Slot>; CALL_SLOTS],
    free: Mutex<Vec<usize>>,
    freed: Condvar,
    dead: AtomicBool,
    /// From the first call that may be answered later.
    waiting: OnceLock<Arc<WaitingCalls>>,
    /// Held by who makes it.
    joining: Mutex<()>,
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
        stats: Arc<Stats>,
        timeout: Duration,
    ) -> Result<RpcClient, VerbsError> {
        Ok(RpcClient {
            messages: Messages::new(pd, qp, CALL_SLOTS)?,
            attendance: Attendance::new(LANE, cq, polling.0, polling.1),
            slots: Default::default(),
            free: Mutex::new((0..CALL_SLOTS).collect()),
            freed: Condvar::new(),
            dead: AtomicBool::new(false),
            waiting: OnceLock::new(),
            joining: Mutex::new(()),
            stats,
            timeout,
        })
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
        let deadline = Instant::now() + self.timeout;
        let slot = self.take_slot(deadline)?;
        let result = self.call_in(slot, number, request, reply, deadline);
        // After a timeout the reply may still come: the session is dead then, and the slot's number means nothing.
        self.free.lock().push(slot);
        self.freed.notify_one();
        result
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
        let ticket = Ticket::of_this_thread(1);
        ticket.posted_on(LANE);
        {
            let mut entry = self.slots[slot].lock();
            entry.ticket = Some(Arc::clone(&ticket));
            entry.number = number;
            entry.deferred = false;
            std::mem::swap(&mut entry.reply, reply);
        }
        if self.is_dead() {
            // The slot was filled too late to be failed with the others.
            self.fail();
        } else {
            self.send(Header { slot, kind: Kind::Plain, number }, request);
        }
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        let mut timed_out = false;
        while !ticket.is_done() {
            match self.attendance.wait(&ticket, deadline, &self.stats, &dispatch) {
                Waited::Done => {}
                Waited::TimedOut => {
                    timed_out = true;
                    self.fail();
                }
                Waited::Broken(e) => {
                    log::error!("{e}");
                    self.fail();
                }
            }
        }
        let got = {
            let mut entry = self.slots[slot].lock();
            std::mem::swap(&mut entry.reply, reply);
            if entry.deferred { Got::Promise } else { Got::Reply }
        };
        match ticket.result() {
            Err(_) if timed_out => Err(RequestError::Timeout(self.timeout)),
            other => other.map(|()| got),
        }
    }

    fn send(&self, header: Header, request: &[u8]) {
        if let Err(e) = self.messages.send(header, request) {
            log::debug!("call: {e}");
            self.fail();
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
            let owner = entry.ticket.take()?;
            entry.deferred = header.kind == Kind::Deferred;
            // The caller's own buffer: it is kept from call to call.
            self.messages.take(wc, &mut entry.reply);
            let unanswered = header.kind == Kind::Unanswered;
            Some((owner, if unanswered { Err(RequestError::Unanswered) } else { Ok(()) }))
        });
        let Some((owner, result)) = owner else {
            log::warn!("the peer sent what answers no call: closing the session");
            self.fail();
            return;
        };
        if let Err(e) = self.messages.post_recv(wc.wr_id as usize) {
            log::debug!("receive: {e}");
            self.fail();
        }
        self.stats.call_latency.record(owner.started().elapsed());
        self.tell(&owner, result);
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
        for slot in &self.slots {
            let owner = slot.lock().ticket.take();
            if let Some(owner) = owner {
                self.tell(&owner, Err(RequestError::Disconnected));
            }
        }
        self.freed.notify_all();
        if let Some(waiting) = self.waiting.get() {
            waiting.fail();
        }
        // Whoever sleeps on the completion queue has been served above.
        self.attendance.wake();
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
