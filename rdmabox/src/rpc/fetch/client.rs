//! The calling side of a call by fetching: write the request, poll for the answer, and notify the
//! host if the answer takes long.
//!
//! # Concurrency
//! Called from any thread. Each slot's lock is used by the owner of the call slot.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{
    FetchSize, PollBudget, ReadDelay, ReplyMemory, layout,
    layout::Kind,
    session_poller::fence_after_request,
    slot_access::{OneSided, PollResult, SlotAccess},
};
use crate::{
    error::RequestError,
    rpc::message::CALL_SLOTS,
    stats::Stats,
    sync::{spin_loop, yield_now},
    verbs::RemoteAddr,
};

/// Polls of mapped memory per round. The thread yields its core after each round.
const POLLS_PER_ROUND: u32 = 64;
/// Limits before the host is notified: rounds on mapped memory, or READs.
const MAX_ROUNDS: u32 = 32;
const MAX_READS: u32 = 4;
/// Limit of rounds on memory of this side. They include the way over the network.
const MAX_OWN_ROUNDS: u32 = 256;

#[derive(Debug, Default)]
struct Slot {
    /// Number of the last call.
    number: u32,
    /// Buffer for WRITEs and READs of unmapped memory.
    scratch: Vec<u8>,
}

/// A session's calls by fetching.
#[derive(Debug)]
pub(crate) struct FetchClient {
    access: SlotAccess,
    budget: PollBudget,
    /// Time from the end of the WRITE to the first READ.
    delay: ReadDelay,
    /// Each entry is used by the thread that owns the call slot.
    slots: [Mutex<Slot>; CALL_SLOTS],
}

/// The progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The reply has been copied.
    Answered,
    /// The service has given the call up.
    Unanswered,
    /// The service has refused the call. Its reason has been copied.
    Rejected,
    /// The host has to be notified of call `number`, and then replies by message.
    Notify { number: u32 },
    /// Call `number` has no answer yet; the host polls for its request.
    Parked { number: u32 },
    /// Another thread has ended the call.
    Ended,
    /// The host has written an invalid record.
    Malformed,
}

impl FetchClient {
    /// Creates a client without calls under way. `base` is the address of the memory at the host.
    /// `maps` permits a mapping of it. `fetch_size` is the length of the first READ of an answer.
    pub(crate) fn new(
        one_sided: Box<dyn OneSided>,
        base: RemoteAddr,
        fetch_size: FetchSize,
        maps: bool,
    ) -> FetchClient {
        FetchClient {
            access: SlotAccess::new(one_sided, base, fetch_size, maps),
            budget: PollBudget::new(if maps { MAX_ROUNDS } else { MAX_READS }),
            delay: ReadDelay::default(),
            slots: Default::default(),
        }
    }

    /// Has the host WRITE answers to this memory.
    ///
    /// # Errors
    /// The host was not told.
    pub(crate) fn write_replies_to(mut self, replies: ReplyMemory) -> Result<FetchClient, RequestError> {
        self.access.write_replies_to(replies)?;
        self.budget = PollBudget::new(MAX_OWN_ROUNDS);
        Ok(self)
    }

    /// Makes a call in `slot`, which the caller owns. Polls for the answer until the budget is
    /// spent or `is_done` returns true.
    pub(crate) fn call(
        &self,
        slot: usize,
        request: &[u8],
        reply: &mut Vec<u8>,
        stats: &Stats,
        is_done: impl Fn() -> bool,
    ) -> Result<Stage, RequestError> {
        let mut entry = self.slots[slot].lock();
        let Slot { number, scratch } = &mut *entry;
        *number = layout::next(*number);
        self.access.put(slot, *number, request, scratch)?;
        stats.call_writes.inc();
        if self.access.mapped().is_some() {
            fence_after_request();
            self.access.publish_core();
        }
        let is_local = self.access.polls_locally();
        if !is_local {
            pause(self.delay.delay());
        }
        let (limit, polls) = (self.budget.limit(), if is_local { POLLS_PER_ROUND } else { 1 });
        for round in 0..limit {
            for poll in 0..polls {
                match self.access.poll(slot, *number, reply, scratch, stats)? {
                    PollResult::Answer(kind) => {
                        if round > 0 {
                            self.budget.record_hit(round);
                        } else if !is_local {
                            // A host that answers so soon has not become slow: it lacked a
                            // processor when its last answer was late.
                            self.budget.record_hit(MAX_READS / 2);
                        }
                        if !is_local && kind != Kind::Deferred {
                            self.delay.record(round > 0);
                        }
                        return Ok(stage(kind, *number));
                    }
                    PollResult::Malformed => return Ok(Stage::Malformed),
                    // A host that is awake at the first poll serves the request before it sleeps.
                    PollResult::Pending { asleep: true } if round == 0 && poll == 0 => {
                        return Ok(Stage::Notify { number: *number });
                    }
                    PollResult::Pending { .. } => {}
                }
                spin_loop();
            }
            if is_done() {
                return Ok(Stage::Ended);
            }
            if is_local {
                yield_now();
            } else if round + 1 < limit {
                pause(self.delay.delay());
            }
        }
        self.budget.record_miss();
        Ok(Stage::Notify { number: *number })
    }

    /// Returns true if the memory is mapped, so that calls can be parked and polls are cheap.
    pub(crate) fn is_mapped(&self) -> bool {
        self.access.mapped().is_some()
    }

    /// Writes the request of a call in `slot`, which the caller owns, without polling. Returns
    /// [`Notify`](Stage::Notify) if the host is asleep, otherwise [`Parked`](Stage::Parked).
    pub(crate) fn park(&self, slot: usize, request: &[u8], stats: &Stats) -> Result<Stage, RequestError> {
        let mut entry = self.slots[slot].lock();
        let Slot { number, scratch } = &mut *entry;
        *number = layout::next(*number);
        self.access.put(slot, *number, request, scratch)?;
        stats.call_writes.inc();
        fence_after_request();
        self.access.publish_core();
        let asleep = self.access.is_asleep(slot);
        Ok(if asleep { Stage::Notify { number: *number } } else { Stage::Parked { number: *number } })
    }

    /// Polls once for the answer to the last call in `slot`. Returns [`Parked`](Stage::Parked) if
    /// there is none.
    pub(crate) fn poll(
        &self,
        slot: usize,
        reply: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<Stage, RequestError> {
        let mut entry = self.slots[slot].lock();
        let Slot { number, scratch } = &mut *entry;
        Ok(match self.access.poll(slot, *number, reply, scratch, stats)? {
            PollResult::Answer(kind) => stage(kind, *number),
            PollResult::Pending { .. } => Stage::Parked { number: *number },
            PollResult::Malformed => Stage::Malformed,
        })
    }

    /// Takes the answer to the last call in `slot`, which the host has reported to be in memory.
    pub(crate) fn take(
        &self,
        slot: usize,
        reply: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<Stage, RequestError> {
        let mut entry = self.slots[slot].lock();
        let Slot { number, scratch } = &mut *entry;
        Ok(match self.access.take(slot, *number, reply, scratch, stats)? {
            PollResult::Answer(kind) if kind != Kind::Deferred => stage(kind, *number),
            _ => Stage::Malformed,
        })
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn begin_at(&self, slot: usize, number: u32) {
        self.slots[slot].lock().number = number;
    }

    /// Fails one-sided requests from now on.
    pub(crate) fn fail(&self) {
        self.access.fail();
    }
}

/// Lets other threads run for a while.
fn pause(time: Duration) {
    if time.is_zero() {
        return;
    }
    let begun = Instant::now();
    while begun.elapsed() < time {
        yield_now();
    }
}

fn stage(kind: Kind, number: u32) -> Stage {
    match kind {
        Kind::Plain => Stage::Answered,
        Kind::Unanswered => Stage::Unanswered,
        Kind::Rejected => Stage::Rejected,
        Kind::Deferred => Stage::Notify { number },
    }
}
