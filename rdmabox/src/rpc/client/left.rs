//! Started calls whose requests are in memory at the host, which looks at them: no message goes out, and none comes back.
//!
//! Whoever makes another call looks for their answers on the way. Whoever waits for them rings the host for each first, so that its answer
//! is a message, which wakes. A call that is left while somebody waits is rung for at once: the one who waits says so first and looks then, the
//! one who leaves a call writes it down first and asks who waits then, so that one of the two finds the other.

use smallvec::SmallVec;

use super::{CALL_SLOTS, FetchClient, Header, Kind, Owner, RpcClient, Stage};
use crate::{
    rpc::started::Slots,
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
        self.shown.load(Ordering::Relaxed).count_ones() as usize
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
    /// does without, and is told so with false.
    fn look(&self, must: bool, mut goes: impl FnMut(usize) -> bool) -> bool {
        let slots = if must { Some(self.slots.lock()) } else { self.slots.try_lock() };
        let Some(mut slots) = slots else { return false };
        let gone = (0..CALL_SLOTS).filter(|slot| *slots & (1 << slot) != 0 && goes(*slot));
        *slots &= !gone.fold(0, |gone, slot| gone | 1 << slot);
        self.shown.store(*slots, Ordering::Relaxed);
        true
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
            Ok(Stage::Ring { number }) => self.ring(slot, number),
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

    /// Takes the answers to calls that were left. With `rings` those that have none are answered by message from now on. False if another
    /// thread is at it, which may have looked too early.
    pub(super) fn gather(&self, rings: bool) -> bool {
        let Some(fetch) = self.fetch.as_ref().filter(|_| rings || self.left.count() > 0) else { return true };
        let mut found: SmallVec<[(usize, Result<Stage, RequestError>); CALL_SLOTS]> = SmallVec::new();
        let looked = self.left.look(rings, |slot| {
            let stage = fetch.look(slot, &mut self.slots[slot].lock().reply, &self.stats);
            let goes = rings || !matches!(stage, Ok(Stage::Left { .. }));
            if goes {
                found.push((slot, stage));
            }
            goes
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
        looked
    }

    fn end_left(&self, slot: usize, result: Result<(), RequestError>) {
        let owner = self.slots[slot].lock().owner.take();
        // The end of the session may have been quicker, and has told of it then.
        if owner.is_some() {
            self.stats.calls_fetched.inc();
            self.end_started(slot, result);
        }
    }

    /// Asks for a message in the place of an answer in memory.
    fn ring(&self, slot: usize, number: u32) {
        if let Some(owner) = &mut self.slots[slot].lock().owner {
            *owner = Owner::Started;
        }
        self.stats.calls_rung.inc();
        self.send_or_fail(Header { slot, kind: Kind::Ring, number }, &[]);
    }
}

#[cfg(all(loom, test))]
mod model;
