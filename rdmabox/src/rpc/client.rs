//! The calling side. A caller polls for its own reply, and for those of others while it is at it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{CALL_SLOTS, MAX_CALL, Messages, SEND_ID};
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
    reply: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct RpcClient {
    messages: Messages,
    attendance: Attendance,
    slots: [Mutex<Slot>; CALL_SLOTS],
    free: Mutex<Vec<usize>>,
    freed: Condvar,
    dead: AtomicBool,
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
        let messages = Messages::new(pd, qp)?;
        messages.post_all_recvs().map_err(|e| VerbsError::Protocol(e.to_string()))?;
        Ok(RpcClient {
            messages,
            attendance: Attendance::new(LANE, cq, polling.0, polling.1),
            slots: Default::default(),
            free: Mutex::new((0..CALL_SLOTS).collect()),
            freed: Condvar::new(),
            dead: AtomicBool::new(false),
            stats,
            timeout,
        })
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Calls and waits for the reply.
    pub(crate) fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        if request.len() > MAX_CALL {
            let text = format!("a call of {} bytes, the limit is {MAX_CALL}", request.len());
            return Err(RequestError::Invalid(text));
        }
        self.stats.calls.inc();
        let deadline = Instant::now() + self.timeout;
        let result = self.take_slot(deadline).and_then(|slot| {
            let result = self.call_in(slot, request, reply, deadline);
            // After a timeout the reply may still come: the session is dead then, and the slot's number means nothing.
            self.free.lock().push(slot);
            self.freed.notify_one();
            result
        });
        if result.is_err() {
            self.stats.errors.inc();
        }
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
        request: &[u8],
        reply: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<(), RequestError> {
        let ticket = Ticket::of_this_thread(1);
        ticket.posted_on(LANE);
        {
            let mut entry = self.slots[slot].lock();
            entry.ticket = Some(Arc::clone(&ticket));
            std::mem::swap(&mut entry.reply, reply);
        }
        if self.is_dead() {
            // The slot was filled too late to be failed with the others.
            self.fail();
        } else {
            self.send(slot, request);
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
        std::mem::swap(&mut self.slots[slot].lock().reply, reply);
        match ticket.result() {
            Err(_) if timed_out => Err(RequestError::Timeout(self.timeout)),
            other => other,
        }
    }

    fn send(&self, slot: usize, request: &[u8]) {
        if let Err(e) = self.messages.send(slot, request) {
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
        let owner = self.messages.slot_of(wc).and_then(|slot| {
            let mut entry = self.slots[slot].lock();
            let owner = entry.ticket.take();
            if owner.is_some() {
                // The caller's own buffer: it is kept from call to call.
                self.messages.take(wc, &mut entry.reply);
            }
            owner
        });
        let Some(owner) = owner else {
            log::warn!("the peer sent what answers no call: closing the session");
            self.fail();
            return;
        };
        if let Err(e) = self.messages.post_recv(wc.wr_id as usize) {
            log::debug!("receive: {e}");
            self.fail();
        }
        self.stats.call_latency.record(owner.started().elapsed());
        self.tell(&owner, Ok(()));
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
        // Whoever sleeps on the completion queue has been served above.
        self.attendance.wake();
    }
}
