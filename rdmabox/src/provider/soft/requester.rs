//! The requester's side of a queue pair: posted send work requests and their completion in order.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::{completions::FreedSlots, cq::SoftCq, post::Held, regions::Piece};
use crate::verbs::{WcOpcode, WcStatus, WorkCompletion};
use std::sync::{Arc, atomic::Ordering};

/// Vectors of pieces that are kept for use again.
const MAX_SPARE: usize = 64;

/// Local memory of a request.
pub(crate) type Pieces = SmallVec<[Piece; 4]>;

/// A request that is not complete, or waits for one before it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub wr_id: u64,
    pub msn: u32,
    pub opcode: WcOpcode,
    pub signaled: bool,
    pub byte_len: u32,
    /// Where a response lands.
    pub landing: Pieces,
    /// Set when it has been executed here and only waits for its turn.
    pub done: Option<WcStatus>,
}

/// What a response from the peer led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// A request failed: the queue pair has to go to Err.
    Failed,
    /// The peer answered something that was never asked.
    Nonsense,
}

/// The send queue. Completions are pushed while it is locked, so that they keep their order.
#[derive(Debug)]
pub(crate) struct SendQueue {
    qp_num: u32,
    cq: Arc<SoftCq>,
    /// What the completion queue knows it by.
    number: usize,
    /// Slots taken, and slots given back, ever. Both wrap.
    taken: u32,
    freed: FreedSlots,
    next_msn: u32,
    outstanding: VecDeque<Entry>,
    /// READs and atomics among them.
    responses: usize,
    /// Requests that may not start yet, in order.
    held: VecDeque<Held>,
    /// Unsignaled requests that succeeded since the last completion; the next one frees their slots.
    unreported: u32,
    /// Room for the pieces of requests that have many, to be used again.
    spare: Vec<Pieces>,
    /// A request has failed: whatever is posted behind it is flushed.
    poisoned: bool,
}

impl SendQueue {
    pub(crate) fn new(qp_num: u32, cq: Arc<SoftCq>, depth: u32) -> SendQueue {
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

    /// Room for `count` pieces.
    pub(crate) fn room_for(&mut self, count: usize) -> Pieces {
        match count > Pieces::new().inline_size() {
            true => self.spare.pop().unwrap_or_else(|| Pieces::with_capacity(count)),
            false => Pieces::new(),
        }
    }

    /// Takes back what [`room_for`](Self::room_for) gave; the memory is let go.
    pub(crate) fn take_back(&mut self, mut pieces: Pieces) {
        if pieces.spilled() && self.spare.len() < MAX_SPARE {
            pieces.clear();
            self.spare.push(pieces);
        }
    }

    /// Slots that are not free.
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

    /// Adds a request. True if it failed and was reported already.
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

    /// True while a request waits for the peer.
    pub(crate) fn awaits_peer(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// True while a READ or an atomic waits for its answer.
    pub(crate) fn awaits_response(&self) -> bool {
        self.responses > 0
    }

    /// True if every request that was posted is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.held.is_empty()
    }

    /// True if requests are held: whatever is posted is held, too.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    pub(crate) fn hold(&mut self, held: Held) {
        self.held.push_back(held);
    }

    /// The first request that is held, if it may start.
    pub(crate) fn take_held(&mut self, may_start: impl Fn(&SendQueue, &Held) -> bool) -> Option<Held> {
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

    /// Flushes a request that was posted when it was too late, in its turn.
    pub(crate) fn flush(&mut self, flushed: Entry) {
        if self.outstanding.is_empty() {
            self.report(&flushed, WcStatus::WrFlushErr);
        } else {
            self.outstanding.push_back(flushed);
        }
    }

    /// Reports a request that is flushed at once.
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

    /// Completes what was executed here and is first in line now.
    fn settle(&mut self) -> Outcome {
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
        // Sequence numbers wrap; far fewer than half of them are ever outstanding.
        self.outstanding.front().is_some_and(|e| msn.wrapping_sub(e.msn) < 1 << 31)
    }

    fn was_posted(&self, msn: u32) -> bool {
        self.next_msn.wrapping_sub(msn).wrapping_sub(1) < 1 << 31
    }

    /// Everything up to and including `msn` is done at the peer. Requests that wait for a response of their own
    /// cannot be acknowledged this way.
    pub(crate) fn acked(&mut self, msn: u32) -> Outcome {
        if !self.was_posted(msn) {
            return Outcome::Nonsense;
        }
        while self.front_is_up_to(msn) {
            if self.outstanding.front().is_some_and(|e| e.done.is_none() && expects_response(e.opcode)) {
                return Outcome::Nonsense;
            }
            let Some(entry) = self.pop() else { break };
            let status = entry.done.unwrap_or(WcStatus::Success);
            self.report(&entry, status);
            if status != WcStatus::Success {
                return Outcome::Failed;
            }
        }
        self.settle()
    }

    /// The peer refused `msn`; everything before it is done.
    pub(crate) fn refused(&mut self, msn: u32, status: WcStatus) -> Outcome {
        if !self.was_posted(msn) {
            return Outcome::Nonsense;
        }
        match self.acked(msn.wrapping_sub(1)) {
            Outcome::Ok => {}
            other => return other,
        }
        if !self.outstanding.front().is_some_and(|e| e.msn == msn && e.done.is_none()) {
            return Outcome::Nonsense;
        }
        let Some(entry) = self.pop() else { return Outcome::Nonsense };
        // A refusal is never a success, whatever the peer calls it.
        let status = if status == WcStatus::Success { WcStatus::GeneralErr } else { status };
        self.report(&entry, status);
        Outcome::Failed
    }

    /// A response to `msn` of `len` bytes begins: where it lands. Asked once for each request.
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
            _ => Err(Outcome::Nonsense),
        }
    }

    /// The response to the first request in line has landed where [`response`](Self::response) said.
    pub(crate) fn response_done(&mut self, landing: Pieces) -> Outcome {
        self.take_back(landing);
        if let Some(entry) = self.pop() {
            self.report(&entry, WcStatus::Success);
        }
        self.settle()
    }

    /// Everything that is left fails: the first request with `first`, the others flushed.
    pub(crate) fn fail(&mut self, first: WcStatus) {
        self.poisoned = true;
        let mut failed = false;
        while let Some(entry) = self.pop() {
            let status = match entry.done {
                _ if failed => WcStatus::WrFlushErr,
                // Executed, or found wrong, before the failure, and first in line.
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

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.cq.leave(self.number);
    }
}

fn expects_response(opcode: WcOpcode) -> bool {
    matches!(opcode, WcOpcode::RdmaRead | WcOpcode::CompSwap | WcOpcode::FetchAdd)
}
