//! The entries of a completion queue, and the flag that requests a wakeup.
//!
//! # Concurrency
//! Any thread may call any method. `is_empty` lets most polls of an empty queue skip the lock. A
//! poller arms the queue and polls once more before it sleeps. Arming and adding take the same
//! lock. So either the last poll finds a concurrent completion, or the completion finds the queue
//! armed and wakes the poller.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicU32},
};

use slab::Slab;

use crate::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    verbs::{VerbsError, WorkCompletion},
};

/// Total number of slots that a send queue got back. A completion frees slots when it is polled,
/// as on a device.
pub(crate) type FreedSlots = Arc<AtomicU32>;

/// A completion, the number of slots that polling it frees, and the index of their send queue.
#[derive(Debug)]
pub(crate) struct Cqe {
    pub(crate) wc: WorkCompletion,
    pub(crate) frees: u32,
    pub(crate) queue: usize,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Cqe>,
    overrun: bool,
    /// True if the next completion must wake a waiter.
    armed: bool,
    /// Send queues that complete here. An index in each completion avoids reference counting.
    queues: Slab<FreedSlots>,
}

#[derive(Debug)]
pub(crate) struct Completions {
    depth: usize,
    ring: Mutex<Ring>,
    /// True if there is neither an entry nor an overrun. Changes under `ring`.
    is_empty: AtomicBool,
}

impl Completions {
    pub(crate) fn new(depth: usize) -> Completions {
        let ring = Ring { entries: VecDeque::with_capacity(depth), ..Ring::default() };
        Completions { depth, ring: Mutex::new(ring), is_empty: AtomicBool::new(true) }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Registers a send queue and returns its index for [`Cqe::queue`].
    pub(crate) fn enter(&self, freed: FreedSlots) -> usize {
        self.ring.lock().queues.insert(freed)
    }

    /// Removes a send queue. Its completions can still be polled.
    pub(crate) fn leave(&self, queue: usize) {
        let mut ring = self.ring.lock();
        for cqe in ring.entries.iter_mut().filter(|cqe| cqe.queue == queue) {
            cqe.frees = 0;
        }
        ring.queues.remove(queue);
    }

    /// Adds a completion. Returns true if the caller must wake a waiter.
    #[must_use]
    pub(crate) fn add(&self, cqe: Cqe) -> bool {
        let mut ring = self.ring.lock();
        if ring.entries.len() >= self.depth {
            ring.overrun = true;
        } else {
            ring.entries.push_back(cqe);
        }
        self.is_empty.store(false, Ordering::Release);
        std::mem::take(&mut ring.armed)
    }

    /// Requests a wakeup for the next completion. A poll after this call finds earlier completions.
    pub(crate) fn arm(&self) {
        self.ring.lock().armed = true;
    }

    /// Takes up to `out.len()` completions.
    ///
    /// # Errors
    /// [`VerbsError::CqOverrun`] if completions were lost, after all stored completions have been
    /// taken.
    pub(crate) fn take(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        if self.is_empty.load(Ordering::Acquire) {
            return Ok(0);
        }
        let mut ring = self.ring.lock();
        let mut count = 0;
        while count < out.len() {
            let Some(cqe) = ring.entries.pop_front() else { break };
            if cqe.frees > 0 {
                ring.queues[cqe.queue].fetch_add(cqe.frees, Ordering::AcqRel);
            }
            out[count] = cqe.wc;
            count += 1;
        }
        self.is_empty.store(ring.entries.is_empty() && !ring.overrun, Ordering::Release);
        if count == 0 && ring.overrun { Err(VerbsError::CqOverrun) } else { Ok(count) }
    }
}

#[cfg(all(loom, test))]
mod model;
