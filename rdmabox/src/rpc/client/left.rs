//! Started calls whose requests are in memory at the host, which looks at them: no message goes out, and none comes back.
//!
//! Whoever makes another call looks for their answers on the way. Whoever waits for them rings the host for each first, so that its answer
//! is a message, which wakes. A call that is left while somebody waits is rung for at once: the one who waits says so first and looks then, the
//! one who leaves a call writes it down first and asks who waits then, so that one of the two finds the other. An answer that a third one finds meanwhile
//! is nothing that wakes who sleeps on the completion queue: he who finds it does.
//!
//! A host that is busy with something long does not look at memory, though it takes messages. So where a call has been left for half of the time that it may take
//! the next call rings for all that are left, and they have their time from then on.

use std::time::Instant;

use smallvec::SmallVec;

use super::{CALL_SLOTS, FetchClient, Header, Kind, Owner, RpcClient, Slot, Stage};
use crate::{
    rpc::started::{Slots, set_of},
    session::RequestError,
    sync::{
        TryMutex,
        atomic::{AtomicU32, Ordering},
    },
};

/// The slots of such calls.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Held by who looks. A slot in it is not given back.
    slots: TryMutex<Slots>,
    /// The same, for a look without the lock.
    shown: AtomicU32,
}

impl Left {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.shown().count_ones() as usize
    }

    fn shown(&self) -> Slots {
        self.shown.load(Ordering::Relaxed)
    }

    /// One more. True if somebody waits, as `waits` says.
    fn leave(&self, slot: usize, waits: impl FnOnce() -> bool) -> bool {
        let mut slots = self.slots.lock();
        *slots |= 1 << slot;
        self.shown.store(*slots, Ordering::Relaxed);
        drop(slots);
        waits()
    }

    /// Has `goes` look at each, and forgets those for which it says so. Whoever `must` look waits where another thread is at it; anybody else
    /// does without.
    fn look(&self, must: bool, mut goes: impl FnMut(usize) -> bool) {
        let slots = if must { Some(self.slots.lock()) } else { self.slots.try_lock() };
        let Some(mut slots) = slots else { return };
        let gone = (0..CALL_SLOTS).filter(|slot| *slots & (1 << slot) != 0 && goes(*slot));
        *slots &= !set_of(gone);
        self.shown.store(*slots, Ordering::Relaxed);
    }
}

impl RpcClient {
    /// Puts a started call, whose slot is filled, into mapped memory.
    pub(super) fn leave(&self, fetch: &FetchClient, slot: usize, request: &[u8]) {
        if self.is_dead() {
            // As in `send_or_fail`.
            self.fail();
            return;
        }
        match fetch.leave(slot, request) {
            Ok(Stage::Ring { number }) => {
                self.expect_message(slot, &mut self.slots[slot].lock());
                self.ring(slot, number);
            }
            Ok(_) => {
                if self.left.leave(slot, || self.started.has_waiters()) {
                    self.gather(true);
                }
            }
            Err(e) => {
                log::debug!("call: {e}");
                self.fail();
            }
        }
    }

    /// Takes the answers to calls that were left, unless another thread is at it. With `rings` all of them are looked at, and those that have none are answered by
    /// message from now on.
    pub(super) fn gather(&self, rings: bool) {
        let Some(fetch) = self.fetch.as_ref().filter(|_| rings || self.left.count() > 0) else { return };
        let mut found: SmallVec<[(usize, Result<Stage, RequestError>); CALL_SLOTS]> = SmallVec::new();
        self.left.look(rings, |slot| {
            let entry = &mut *self.slots[slot].lock();
            let stage = fetch.look(slot, &mut entry.reply, &self.stats);
            // Whoever looks next, and finds it no longer among those that are left, finds it answered or rung for.
            let is_open = match stage {
                Ok(Stage::Answered | Stage::Unanswered) => entry.owner.take().is_some(),
                Ok(Stage::Left { .. }) if !rings => return false,
                Ok(Stage::Left { .. } | Stage::Ring { .. }) => self.expect_message(slot, entry),
                Ok(Stage::Ended | Stage::Nonsense) | Err(_) => true,
            };
            // The end of the session may have been quicker, and has told of it then.
            if is_open {
                found.push((slot, stage));
            }
            true
        });
        for (slot, stage) in found {
            match stage {
                Ok(Stage::Answered) => self.end_left(slot, Ok(())),
                Ok(Stage::Unanswered) => self.end_left(slot, Err(RequestError::Unanswered)),
                Ok(Stage::Left { number } | Stage::Ring { number }) => self.ring(slot, number),
                Ok(Stage::Ended | Stage::Nonsense) | Err(_) => {
                    log::warn!("the peer wrote what answers no call: closing the session");
                    self.fail();
                }
            }
        }
    }

    /// Rings for what is left, if some of it is to be answered within half of a call's time from `time` on or was before, and says whether a started call that was to be
    /// answered before `time` has no answer, neither in memory nor in a message. `in_order`: all messages of before `time` have been taken.
    pub(super) fn has_overdue(&self, time: Instant, in_order: bool) -> bool {
        let old = self.started.overdue(time + self.timeout / 2);
        if old & self.left.shown() != 0 {
            self.gather(true);
        }
        if old == 0 || self.started.overdue(time) == 0 {
            return false;
        }
        // Another thread that takes messages may have one that it has not handed on.
        if !in_order && !self.cq_waiters.poll_until_empty(&self.stats, &|wcs| self.dispatch(wcs)) {
            return false;
        }
        // What another thread has taken the answer of has no owner. First these, then the time: a slot that has another call meanwhile has another time.
        let owned = set_of((0..CALL_SLOTS).filter(|&slot| self.slots[slot].lock().owner.is_some()));
        self.started.overdue(time) & owned != 0
    }

    fn end_left(&self, slot: usize, result: Result<(), RequestError>) {
        self.stats.calls_fetched.inc();
        if self.end_started(slot, result) {
            // Whoever has been told may sleep on the completion queue.
            self.cq_waiters.wake();
        }
    }

    /// From now on a message answers the call in a slot, which has its time anew. False if the session has ended.
    fn expect_message(&self, slot: usize, entry: &mut Slot) -> bool {
        let Some(owner) = &mut entry.owner else { return false };
        *owner = Owner::Rung;
        self.started.renew(slot, Instant::now() + self.timeout);
        true
    }

    /// Asks for a message in the place of an answer in memory.
    fn ring(&self, slot: usize, number: u32) {
        self.stats.calls_rung.inc();
        self.send_or_fail(Header { slot, kind: Kind::Ring, number }, &[]);
    }
}

#[cfg(all(loom, test))]
mod model;
