//! The requester's side of a queue pair: posted send work requests and their completion in order.
//!
//! # Concurrency
//! [`SendQueue`] has no lock of its own; the queue pair locks it. It pushes completions under
//! that lock.

use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::MutexGuard;

use super::request::{Entry, Held, Pieces};
use crate::{
    provider::soft::completion::{FreedSlots, Member, SoftCq},
    verbs::{WcOpcode, WcStatus, WorkCompletion},
};

/// Maximum number of piece vectors that are kept for reuse.
const MAX_SPARE: usize = 64;

/// Result of a response from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// A request failed; the queue pair must go to Err.
    Failed,
    /// The response does not match any request.
    ProtocolError,
}

/// The send queue. Completions are pushed while it is locked, so they keep their order.
#[derive(Debug)]
pub(crate) struct SendQueue<M: Member> {
    qp_num: u32,
    cq: Arc<SoftCq<M>>,
    /// Index of this queue in the completion queue.
    number: usize,
    /// Total number of slots taken; wraps, as does `freed`.
    taken: u32,
    freed: FreedSlots,
    next_msn: u32,
    outstanding: VecDeque<Entry>,
    /// Number of READs and atomics in `outstanding`.
    responses: usize,
    /// Requests that must not start yet, in order.
    held: VecDeque<Held>,
    /// Unsignaled requests that succeeded since the last completion. The next completion frees
    /// their slots.
    unreported: u32,
    /// Piece vectors of requests with many pieces, for reuse.
    spare: Vec<Pieces>,
    /// True after a request failed: later requests are flushed.
    poisoned: bool,
}

impl<M: Member> SendQueue<M> {
    pub(crate) fn new(qp_num: u32, cq: Arc<SoftCq<M>>, depth: u32) -> SendQueue<M> {
        let freed = FreedSlots::default();
        SendQueue {
            qp_num,
            number: cq.enter(Arc::clone(&freed)),
            cq,
            taken: 0,
            freed,
            next_msn: 0,
            outstanding: VecDeque::with_capacity(depth as usize),
            responses: 0,
            held: VecDeque::new(),
            unreported: 0,
            spare: Vec::new(),
            poisoned: false,
        }
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Returns an empty vector for `count` pieces.
    pub(crate) fn room_for(&mut self, count: usize) -> Pieces {
        match count > Pieces::new().inline_size() {
            true => self.spare.pop().unwrap_or_else(|| Pieces::with_capacity(count)),
            false => Pieces::new(),
        }
    }

    /// Drops the pieces and keeps the vector for [`room_for`](Self::room_for).
    pub(crate) fn take_back(&mut self, mut pieces: Pieces) {
        if pieces.spilled() && self.spare.len() < MAX_SPARE {
            pieces.clear();
            self.spare.push(pieces);
        }
    }

    /// Returns the number of slots in use.
    pub(crate) fn slots_in_use(&self) -> u32 {
        self.taken.wrapping_sub(self.freed.load(Ordering::Acquire))
    }

    pub(crate) fn take_slot(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    pub(crate) fn return_slot(&mut self) {
        self.taken = self.taken.wrapping_sub(1);
    }

    pub(crate) fn take_msn(&mut self) -> u32 {
        let msn = self.next_msn;
        self.next_msn = msn.wrapping_add(1);
        msn
    }

    /// Adds a request. Returns true if it failed and was reported.
    pub(crate) fn push(&mut self, entry: Entry) -> bool {
        match entry.done {
            Some(status) => {
                self.poisoned |= status != WcStatus::Success;
                if self.outstanding.is_empty() {
                    self.report(&entry, status);
                    return status != WcStatus::Success;
                }
                self.outstanding.push_back(entry);
            }
            None => {
                self.responses += usize::from(expects_response(entry.opcode));
                self.outstanding.push_back(entry);
            }
        }
        false
    }

    /// Returns true while a request waits for the peer.
    pub(crate) fn awaits_peer(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Returns true while a READ or an atomic waits for its response.
    pub(crate) fn awaits_response(&self) -> bool {
        self.responses > 0
    }

    /// Returns true if every posted request is complete.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.held.is_empty()
    }

    /// Returns true if requests are held. New requests must then be held too.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    pub(crate) fn hold(&mut self, held: Held) {
        self.held.push_back(held);
    }

    /// Takes the first held request if it may start.
    pub(crate) fn take_held(&mut self, may_start: impl Fn(&SendQueue<M>, &Held) -> bool) -> Option<Held> {
        let held = self.held.pop_front()?;
        if may_start(self, &held) {
            return Some(held);
        }
        self.held.push_front(held);
        None
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.outstanding.pop_front()?;
        if entry.done.is_none() && expects_response(entry.opcode) {
            self.responses -= 1;
        }
        Some(entry)
    }

    /// Flushes a request that was posted after a failure, behind all earlier requests.
    pub(crate) fn flush(&mut self, flushed: Entry) {
        if self.outstanding.is_empty() {
            self.report(&flushed, WcStatus::WrFlushErr);
        } else {
            self.outstanding.push_back(flushed);
        }
    }

    /// Reports a request as flushed immediately.
    fn flush_now(&mut self, wr_id: u64, opcode: WcOpcode) {
        let entry = Entry {
            wr_id,
            msn: 0,
            opcode,
            signaled: true,
            byte_len: 0,
            landing: Pieces::new(),
            done: Some(WcStatus::WrFlushErr),
        };
        self.report(&entry, WcStatus::WrFlushErr);
    }

    fn report(&mut self, entry: &Entry, status: WcStatus) {
        if status == WcStatus::Success && !entry.signaled {
            self.unreported += 1;
            return;
        }
        let freed = 1 + std::mem::take(&mut self.unreported);
        let wc = WorkCompletion {
            wr_id: entry.wr_id,
            status,
            opcode: entry.opcode,
            byte_len: entry.byte_len,
            imm: None,
            qp_num: self.qp_num,
        };
        self.cq.push_send(wc, self.number, freed);
    }

    /// Completes requests at the front that were executed locally.
    fn complete_executed(&mut self) -> Outcome {
        while let Some(status) = self.outstanding.front().and_then(|e| e.done) {
            if let Some(entry) = self.pop() {
                self.report(&entry, status);
            }
            if status != WcStatus::Success {
                return Outcome::Failed;
            }
        }
        Outcome::Ok
    }

    fn front_is_up_to(&self, msn: u32) -> bool {
        // Sequence numbers wrap. Far fewer than half of them are outstanding at any time.
        self.outstanding.front().is_some_and(|e| msn.wrapping_sub(e.msn) < 1 << 31)
    }

    fn was_posted(&self, msn: u32) -> bool {
        self.next_msn.wrapping_sub(msn).wrapping_sub(1) < 1 << 31
    }

    /// Completes every request up to and including `msn`. Requests with their own response cannot
    /// be acknowledged this way.
    pub(crate) fn acked(&mut self, msn: u32) -> Outcome {
        if !self.was_posted(msn) {
            return Outcome::ProtocolError;
        }
        while self.front_is_up_to(msn) {
            if self.outstanding.front().is_some_and(|e| e.done.is_none() && expects_response(e.opcode)) {
                return Outcome::ProtocolError;
            }
            let Some(entry) = self.pop() else { break };
            let status = entry.done.unwrap_or(WcStatus::Success);
            self.report(&entry, status);
            if status != WcStatus::Success {
                return Outcome::Failed;
            }
        }
        self.complete_executed()
    }

    /// Handles the refusal of `msn`. Every earlier request is complete.
    pub(crate) fn refused(&mut self, msn: u32, status: WcStatus) -> Outcome {
        if !self.was_posted(msn) {
            return Outcome::ProtocolError;
        }
        match self.acked(msn.wrapping_sub(1)) {
            Outcome::Ok => {}
            other => return other,
        }
        if !self.outstanding.front().is_some_and(|e| e.msn == msn && e.done.is_none()) {
            return Outcome::ProtocolError;
        }
        let Some(entry) = self.pop() else { return Outcome::ProtocolError };
        // A refusal is never a success, even if the peer sends that status.
        let status = if status == WcStatus::Success { WcStatus::GeneralErr } else { status };
        self.report(&entry, status);
        Outcome::Failed
    }

    /// Returns the destination of the response to `msn`, which has `len` bytes. Called once per
    /// request.
    pub(crate) fn response(&mut self, msn: u32, len: u32, opcodes: &[WcOpcode]) -> Result<Pieces, Outcome> {
        if self.outstanding.front().is_some_and(|e| e.msn != msn) {
            match self.acked(msn.wrapping_sub(1)) {
                Outcome::Ok => {}
                other => return Err(other),
            }
        }
        match self.outstanding.front_mut() {
            Some(e)
                if e.msn == msn && e.done.is_none() && e.byte_len == len && opcodes.contains(&e.opcode) =>
            {
                Ok(std::mem::take(&mut e.landing))
            }
            _ => Err(Outcome::ProtocolError),
        }
    }

    /// Completes the first request, whose response has been stored where
    /// [`response`](Self::response) said.
    pub(crate) fn response_done(&mut self, landing: Pieces) -> Outcome {
        self.take_back(landing);
        if let Some(entry) = self.pop() {
            self.report(&entry, WcStatus::Success);
        }
        self.complete_executed()
    }

    /// Fails every remaining request: the first with `first`, the others flushed.
    pub(crate) fn fail(&mut self, first: WcStatus) {
        self.poisoned = true;
        let mut failed = false;
        while let Some(entry) = self.pop() {
            let status = match entry.done {
                _ if failed => WcStatus::WrFlushErr,
                // Executed or found invalid before the failure, and first in the queue.
                Some(own) => own,
                None => first,
            };
            failed |= status != WcStatus::Success;
            self.report(&entry, status);
        }
        for held in std::mem::take(&mut self.held) {
            self.flush_now(held.wr_id(), held.opcode());
        }
    }
}

impl<M: Member> Drop for SendQueue<M> {
    fn drop(&mut self) {
        self.cq.leave(self.number);
    }
}

fn expects_response(opcode: WcOpcode) -> bool {
    matches!(opcode, WcOpcode::RdmaRead | WcOpcode::CompSwap | WcOpcode::FetchAdd | WcOpcode::FetchOp)
}

/// The locked send queue. Unlocking it updates `idle`.
pub(crate) struct LockedSendQueue<'a, M: Member> {
    queue: MutexGuard<'a, SendQueue<M>>,
    idle: &'a AtomicBool,
}

impl<'a, M: Member> LockedSendQueue<'a, M> {
    pub(crate) fn new(queue: MutexGuard<'a, SendQueue<M>>, idle: &'a AtomicBool) -> LockedSendQueue<'a, M> {
        LockedSendQueue { queue, idle }
    }
}

impl<M: Member> Deref for LockedSendQueue<'_, M> {
    type Target = SendQueue<M>;

    fn deref(&self) -> &SendQueue<M> {
        &self.queue
    }
}

impl<M: Member> DerefMut for LockedSendQueue<'_, M> {
    fn deref_mut(&mut self) -> &mut SendQueue<M> {
        &mut self.queue
    }
}

impl<M: Member> Drop for LockedSendQueue<'_, M> {
    fn drop(&mut self) {
        // The lock is still held, so the flag is correct before a completion becomes visible.
        let idle = self.queue.is_idle();
        if self.idle.load(Ordering::Relaxed) != idle {
            self.idle.store(idle, Ordering::Release);
        }
    }
}
