//! Started calls whose requests lie in mapped memory, where the host polls them without any
//! message.
//!
//! Threads that make further calls collect the answers. Before a thread blocks on parked calls it
//! notifies the host of each, so that the host answers by message and wakes it. The waiter
//! registers itself, then scans the slots. The parker records its slot, then checks for waiters. At
//! least one of them sees the other, so no waiter sleeps over a parked call.
//!
//! A busy host may not poll memory, although it takes messages. If a call has been parked for half
//! of its timeout, the next call notifies the host of all parked calls, and restarts their
//! timeouts.
//!
//! # Concurrency
//! Called from any thread. Lock order: `ParkedCalls::slots`, a call slot, the fetch slot.

use std::time::Instant;

use smallvec::SmallVec;

use super::{
    Owner, RpcClient, Slot,
    pipelined_call::{Slots, set_of},
};
use crate::{
    error::RequestError,
    rpc::{
        fetch::{FetchClient, Stage},
        message::{CALL_SLOTS, Header, Kind, rejection},
    },
    sync::{
        TryMutex,
        atomic::{AtomicU32, Ordering},
    },
};

/// The set of slots with parked calls.
#[derive(Debug, Default)]
pub(super) struct ParkedCalls {
    /// Held by the scanning thread. Its slots are not returned to the free list.
    slots: TryMutex<Slots>,
    /// Copy of the set, readable without the lock.
    snapshot: AtomicU32,
}

impl ParkedCalls {
    /// Returns the number of parked calls.
    pub(super) fn count(&self) -> usize {
        self.snapshot().count_ones() as usize
    }

    fn snapshot(&self) -> Slots {
        self.snapshot.load(Ordering::Relaxed)
    }

    /// Adds a slot, then calls `waits`. Returns the result: true if a thread waits.
    fn park(&self, slot: usize, waits: impl FnOnce() -> bool) -> bool {
        let mut slots = self.slots.lock();
        *slots |= 1 << slot;
        self.snapshot.store(*slots, Ordering::Relaxed);
        drop(slots);
        waits()
    }

    /// Calls `is_finished` for each slot, and removes those for which it returns true. Blocks for
    /// another scan if `required`, otherwise skips the scan.
    fn scan(&self, required: bool, mut is_finished: impl FnMut(usize) -> bool) {
        let slots = if required { Some(self.slots.lock()) } else { self.slots.try_lock() };
        let Some(mut slots) = slots else { return };
        let finished = (0..CALL_SLOTS).filter(|slot| *slots & (1 << slot) != 0 && is_finished(*slot));
        *slots &= !set_of(finished);
        self.snapshot.store(*slots, Ordering::Relaxed);
    }
}

impl RpcClient {
    /// Parks a started call in mapped memory. Its slot is filled.
    pub(super) fn park(&self, fetch: &FetchClient, slot: usize, request: &[u8]) {
        if self.is_dead() {
            // The slot was filled too late to be failed with the others.
            self.fail();
            return;
        }
        match fetch.park(slot, request, &self.stats) {
            Ok(Stage::Notify { number }) => {
                self.expect_message(slot, &mut self.slots[slot].lock());
                self.notify_host(slot, number);
            }
            Ok(_) => {
                if self.parked.park(slot, || self.started.has_waiters()) {
                    self.collect_parked(true);
                }
            }
            Err(e) => {
                log::debug!("call: {e}");
                self.fail();
            }
        }
    }

    /// Collects the answers to parked calls, unless another thread is collecting. With `notifies`
    /// it examines all parked calls, and notifies the host of each unanswered one.
    pub(super) fn collect_parked(&self, notifies: bool) {
        let Some(fetch) = self.fetch.as_ref().filter(|_| notifies || self.parked.count() > 0) else { return };
        let mut found: SmallVec<[(usize, Result<Stage, RequestError>); CALL_SLOTS]> = SmallVec::new();
        self.parked.scan(notifies, |slot| {
            let entry = &mut *self.slots[slot].lock();
            let stage = fetch.poll(slot, &mut entry.reply, &self.stats);
            // A later scan no longer finds the slot: it is answered, or answered by message.
            let is_open = match stage {
                Ok(Stage::Answered | Stage::Unanswered | Stage::Rejected) => entry.owner.take().is_some(),
                Ok(Stage::Parked { .. }) if !notifies => return false,
                Ok(Stage::Parked { .. } | Stage::Notify { .. }) => self.expect_message(slot, entry),
                Ok(Stage::Ended | Stage::Malformed) | Err(_) => true,
            };
            // The failing session may have taken the owner, and reported the call already.
            if is_open {
                found.push((slot, stage));
            }
            true
        });
        for (slot, stage) in found {
            match stage {
                Ok(Stage::Answered) => self.finish_parked(slot, Ok(())),
                Ok(Stage::Unanswered) => self.finish_parked(slot, Err(RequestError::Unanswered)),
                Ok(Stage::Rejected) => {
                    let rejected = rejection(&self.slots[slot].lock().reply);
                    self.finish_parked(slot, Err(rejected));
                }
                Ok(Stage::Parked { number } | Stage::Notify { number }) => self.notify_host(slot, number),
                Ok(Stage::Ended | Stage::Malformed) | Err(_) => {
                    log::warn!("the peer wrote a malformed answer: closing the session");
                    self.fail();
                }
            }
        }
    }

    /// Notifies the host of parked calls that are due within half a timeout from `time`. Returns
    /// true if a started call was due before `time` and has no answer, neither in memory nor as a
    /// message. `in_order` tells that all messages from before `time` have been dispatched.
    pub(super) fn has_overdue(&self, time: Instant, in_order: bool) -> bool {
        let old = self.started.overdue(time + self.timeout / 2);
        if old & self.parked.snapshot() != 0 {
            self.collect_parked(true);
        }
        if old == 0 || self.started.overdue(time) == 0 {
            return false;
        }
        // Another thread that polls may hold an undispatched message.
        if !in_order && !self.cq_waiters.poll_until_empty(&self.stats, &|wcs| self.dispatch(wcs)) {
            return false;
        }
        // A slot whose answer another thread has taken has no owner. Owners are read before
        // deadlines, because a reused slot has a new deadline.
        let owned = set_of((0..CALL_SLOTS).filter(|&slot| self.slots[slot].lock().owner.is_some()));
        self.started.overdue(time) & owned != 0
    }

    fn finish_parked(&self, slot: usize, result: Result<(), RequestError>) {
        self.stats.calls_fetched.inc();
        if self.finish_started(slot, result) {
            // The waiting thread may sleep on the completion queue.
            self.cq_waiters.wake();
        }
    }

    /// Makes a message answer the call in a slot, and restarts its timeout. Returns false if the
    /// session has ended.
    fn expect_message(&self, slot: usize, entry: &mut Slot) -> bool {
        let Some(owner) = &mut entry.owner else { return false };
        *owner = Owner::Notified;
        self.started.extend_deadline(slot, Instant::now() + self.timeout);
        true
    }

    /// Asks the host to answer a call by message instead of in memory.
    fn notify_host(&self, slot: usize, number: u32) {
        self.stats.calls_rung.inc();
        self.send_or_fail(Header { slot, kind: Kind::Notification, number }, &[]);
    }
}

#[cfg(all(loom, test))]
mod model;
