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

use super::poll_set::PollSet;
use crate::verbs::{CompletionQueue, VerbsError, WorkCompletion};

/// Send queue slots in use. Kept apart from the queue pair so that a completion can give slots back when it is
/// polled, as on a device, even after the queue pair is gone.
#[derive(Debug, Default)]
pub(crate) struct SendSlots(AtomicU32);

impl SendSlots {
    pub(crate) fn in_use(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn take_one(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn give_back(&self, count: u32) {
        self.0.fetch_sub(count, Ordering::AcqRel);
    }
}

/// A completion with the send queue slots that polling it frees.
#[derive(Debug)]
pub(crate) struct Cqe {
    pub wc: WorkCompletion,
    pub frees: Option<(Arc<SendSlots>, u32)>,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Cqe>,
    overrun: bool,
}

#[derive(Debug)]
pub(crate) struct SoftCq {
    depth: usize,
    ring: Mutex<Ring>,
    armed: AtomicBool,
    /// Queue pairs that make progress on whoever polls here, and the means to sleep.
    set: Arc<PollSet>,
}

impl SoftCq {
    pub(crate) fn new(depth: usize) -> Result<SoftCq, VerbsError> {
        let ring = Ring { entries: VecDeque::with_capacity(depth), overrun: false };
        Ok(SoftCq {
            depth,
            ring: Mutex::new(ring),
            armed: AtomicBool::new(false),
            set: Arc::new(PollSet::new()?),
        })
    }

    pub(crate) fn set(&self) -> &Arc<PollSet> {
        &self.set
    }

    /// Adds a completion and fires the event if one was asked for.
    pub(crate) fn push(&self, cqe: Cqe) {
        {
            let mut ring = self.ring.lock();
            if ring.entries.len() >= self.depth {
                ring.overrun = true;
                return;
            }
            ring.entries.push_back(cqe);
        }
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            self.set.wake();
        }
    }

    fn take(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut ring = self.ring.lock();
        let mut count = 0;
        while count < out.len() {
            let Some(cqe) = ring.entries.pop_front() else { break };
            if let Some((slots, freed)) = cqe.frees {
                slots.give_back(freed);
            }
            out[count] = cqe.wc;
            count += 1;
        }
        if count == 0 && ring.overrun { Err(VerbsError::CqOverrun) } else { Ok(count) }
    }
}

impl CompletionQueue for SoftCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let count = self.take(out)?;
        if count == 0 && self.set.progress()? {
            return self.take(out);
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
