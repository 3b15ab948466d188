//! The completions that wait in a queue, and whether somebody is to be woken for the next one.
//!
//! Most looks are at a queue in which there is nothing, and those take no lock. Who goes to sleep asks to be woken and looks
//! once more. A completion that is added just then has to be seen by that look, or to see that it was asked for: so
//! asking takes the lock that adding takes. Whichever comes second knows of the other.

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

/// Slots that a send queue has got back, ever. A completion gives slots back when it is polled, as on a device.
pub(super) type FreedSlots = Arc<AtomicU32>;

/// A completion with the slots that polling it frees, and the send queue whose they are.
#[derive(Debug)]
pub(super) struct Cqe {
    pub(super) wc: WorkCompletion,
    pub(super) frees: u32,
    pub(super) queue: usize,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Cqe>,
    overrun: bool,
    /// Somebody is to be woken.
    armed: bool,
    /// The send queues that complete here: a reference in each completion would be counted up and down each time.
    queues: Slab<FreedSlots>,
}

#[derive(Debug)]
pub(super) struct Completions {
    depth: usize,
    ring: Mutex<Ring>,
    /// There is nothing to take, not even bad news. Changed under `ring`.
    is_empty: AtomicBool,
}

impl Completions {
    pub(super) fn new(depth: usize) -> Completions {
        let ring = Ring { entries: VecDeque::with_capacity(depth), ..Ring::default() };
        Completions { depth, ring: Mutex::new(ring), is_empty: AtomicBool::new(true) }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Makes a send queue known: the number to complete its requests with.
    pub(super) fn enter(&self, freed: FreedSlots) -> usize {
        self.ring.lock().queues.insert(freed)
    }

    /// Forgets a send queue. What it completed can still be taken.
    pub(super) fn leave(&self, queue: usize) {
        let mut ring = self.ring.lock();
        for cqe in ring.entries.iter_mut().filter(|cqe| cqe.queue == queue) {
            cqe.frees = 0;
        }
        ring.queues.remove(queue);
    }

    /// Adds a completion. True if somebody has asked to be woken for it.
    #[must_use]
    pub(super) fn add(&self, cqe: Cqe) -> bool {
        let mut ring = self.ring.lock();
        if ring.entries.len() >= self.depth {
            ring.overrun = true;
        } else {
            ring.entries.push_back(cqe);
        }
        self.is_empty.store(false, Ordering::Release);
        std::mem::take(&mut ring.armed)
    }

    /// Asks to be woken for what is added from now on. What was added before is found by a look after this.
    pub(super) fn arm(&self) {
        self.ring.lock().armed = true;
    }

    /// Takes what there is, at most as much as fits.
    ///
    /// # Errors
    /// [`VerbsError::CqOverrun`] when all that there was room for has been taken.
    pub(super) fn take(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
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
