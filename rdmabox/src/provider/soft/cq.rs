//! Completion queues in software.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{
    completions::{Completions, Cqe, FreedSlots},
    poll_set::PollSet,
};
use crate::verbs::{CompletionQueue, VerbsError, WorkCompletion};

/// Of polls that find nothing, each so-many-th lets other threads run: who polls waits, maybe for an engine that has no
/// core left.
const YIELD_EVERY: u32 = 16;

#[derive(Debug)]
pub(crate) struct SoftCq {
    completions: Completions,
    /// Polls that found nothing.
    in_vain: AtomicU32,
    /// Queue pairs that make progress on whoever polls here, and the means to sleep.
    set: Arc<PollSet>,
}

impl SoftCq {
    pub(crate) fn new(depth: usize) -> Result<SoftCq, VerbsError> {
        Ok(SoftCq {
            completions: Completions::new(depth),
            in_vain: AtomicU32::new(0),
            set: Arc::new(PollSet::new()?),
        })
    }

    pub(crate) fn set(&self) -> &Arc<PollSet> {
        &self.set
    }

    /// Makes a send queue known: the number to complete its requests with.
    pub(super) fn enter(&self, freed: FreedSlots) -> usize {
        self.completions.enter(freed)
    }

    /// Forgets a send queue. What it completed can still be polled.
    pub(super) fn leave(&self, queue: usize) {
        self.completions.leave(queue);
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
        if self.completions.add(cqe) {
            self.set.wake();
        }
    }
}

impl CompletionQueue for SoftCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut count = self.completions.take(out)?;
        if count == 0 && self.set.progress()? {
            count = self.completions.take(out)?;
        }
        if count == 0 && self.in_vain.fetch_add(1, Ordering::Relaxed) % YIELD_EVERY == YIELD_EVERY - 1 {
            std::thread::yield_now();
        }
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.completions.arm();
        Ok(())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        self.set.wait(timeout)
    }

    fn wake(&self) {
        self.set.wake();
    }

    fn depth(&self) -> usize {
        self.completions.depth()
    }
}
