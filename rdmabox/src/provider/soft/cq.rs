//! Completion queues in software.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use slab::Slab;

use super::poll_set::PollSet;
use crate::verbs::{CompletionQueue, VerbsError, WorkCompletion};

/// Of polls that find nothing, each so-many-th lets other threads run: who polls waits, maybe for an engine that has no
/// core left.
const YIELD_EVERY: u32 = 16;

/// Slots that a send queue has got back, ever. A completion gives slots back when it is polled, as on a device.
pub(crate) type FreedSlots = Arc<AtomicU32>;

/// A completion with the slots that polling it frees, and the send queue whose they are.
#[derive(Debug)]
struct Cqe {
    wc: WorkCompletion,
    frees: u32,
    queue: usize,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Cqe>,
    overrun: bool,
    /// The send queues that complete here: a reference in each completion would be counted up and down each time.
    queues: Slab<FreedSlots>,
}

#[derive(Debug)]
pub(crate) struct SoftCq {
    depth: usize,
    ring: Mutex<Ring>,
    /// There is nothing to take, not even bad news. Changed under `ring`.
    is_empty: AtomicBool,
    armed: AtomicBool,
    /// Polls that found nothing.
    in_vain: AtomicU32,
    /// Queue pairs that make progress on whoever polls here, and the means to sleep.
    set: Arc<PollSet>,
}

impl SoftCq {
    pub(crate) fn new(depth: usize) -> Result<SoftCq, VerbsError> {
        let ring = Ring { entries: VecDeque::with_capacity(depth), ..Ring::default() };
        Ok(SoftCq {
            depth,
            ring: Mutex::new(ring),
            is_empty: AtomicBool::new(true),
            armed: AtomicBool::new(false),
            in_vain: AtomicU32::new(0),
            set: Arc::new(PollSet::new()?),
        })
    }

    pub(crate) fn set(&self) -> &Arc<PollSet> {
        &self.set
    }

    /// Makes a send queue known: the number to complete its requests with.
    pub(crate) fn enter(&self, freed: FreedSlots) -> usize {
        self.ring.lock().queues.insert(freed)
    }

    /// Forgets a send queue. What it completed can still be polled.
    pub(crate) fn leave(&self, queue: usize) {
        let mut ring = self.ring.lock();
        for cqe in ring.entries.iter_mut().filter(|cqe| cqe.queue == queue) {
            cqe.frees = 0;
        }
        ring.queues.remove(queue);
    }

    /// Adds the completion of a receive and fires the event if one was asked for.
    pub(crate) fn push_recv(&self, wc: WorkCompletion) {
        self.push(Cqe { wc, frees: 0, queue: 0 });
    }

    /// Adds the completion of a send request, which gives `frees` slots back to `queue`.
    pub(crate) fn push_send(&self, wc: WorkCompletion, queue: usize, frees: u32) {
        self.push(Cqe { wc, frees, queue });
    }

    fn push(&self, cqe: Cqe) {
        {
            let mut ring = self.ring.lock();
            if ring.entries.len() >= self.depth {
                ring.overrun = true;
            } else {
                ring.entries.push_back(cqe);
            }
            self.is_empty.store(false, Ordering::Release);
        }
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            self.set.wake();
        }
    }

    fn take(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
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

impl CompletionQueue for SoftCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut count = self.take(out)?;
        if count == 0 && self.set.progress()? {
            count = self.take(out)?;
        }
        if count == 0 && self.in_vain.fetch_add(1, Ordering::Relaxed) % YIELD_EVERY == YIELD_EVERY - 1 {
            std::thread::yield_now();
        }
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.armed.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        self.set.wait(timeout)
    }

    fn wake(&self) {
        self.set.wake();
    }

    fn depth(&self) -> usize {
        self.depth
    }
}
