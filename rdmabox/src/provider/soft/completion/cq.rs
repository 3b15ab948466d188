//! Completion queues of the software device.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{
    completions::{Completions, Cqe, FreedSlots},
    poll_set::{Member, PollSet},
};
use crate::verbs::{CompletionQueue, VerbsError, WorkCompletion};

/// Number of empty polls after which a poller yields its core. The poller may be waiting for an
/// engine thread that has no core.
const YIELD_EVERY: u32 = 16;

#[derive(Debug)]
pub(crate) struct SoftCq<M> {
    completions: Completions,
    /// Number of empty polls.
    empty_polls: AtomicU32,
    /// Queue pairs that make progress on the thread that polls or waits here, and the descriptors
    /// to wait on.
    set: Arc<PollSet<M>>,
}

impl<M: Member> SoftCq<M> {
    pub(crate) fn new(depth: usize) -> Result<SoftCq<M>, VerbsError> {
        Ok(SoftCq {
            completions: Completions::new(depth),
            empty_polls: AtomicU32::new(0),
            set: Arc::new(PollSet::new()?),
        })
    }

    pub(crate) fn set(&self) -> &Arc<PollSet<M>> {
        &self.set
    }

    /// Registers a send queue and returns its index for the completions of its requests.
    pub(crate) fn enter(&self, freed: FreedSlots) -> usize {
        self.completions.enter(freed)
    }

    /// Removes a send queue. Its completions can still be polled.
    pub(crate) fn leave(&self, queue: usize) {
        self.completions.leave(queue);
    }

    /// Adds the completion of a receive and fires the event if the queue is armed.
    pub(crate) fn push_recv(&self, wc: WorkCompletion) {
        self.push(Cqe { wc, frees: 0, queue: 0 });
    }

    /// Adds the completion of a send request, which returns `frees` slots to send queue `queue`.
    pub(crate) fn push_send(&self, wc: WorkCompletion, queue: usize, frees: u32) {
        self.push(Cqe { wc, frees, queue });
    }

    fn push(&self, cqe: Cqe) {
        if self.completions.add(cqe) {
            self.set.wake();
        }
    }
}

impl<M: Member> crate::verbs::Sealed for SoftCq<M> {}

impl<M: Member> CompletionQueue for SoftCq<M> {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut count = self.completions.take(out)?;
        if count == 0 && self.set.progress()? {
            count = self.completions.take(out)?;
        }
        if count == 0 && self.empty_polls.fetch_add(1, Ordering::Relaxed) % YIELD_EVERY == YIELD_EVERY - 1 {
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

    fn event_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.set.event_fd()), None]
    }

    fn depth(&self) -> usize {
        self.completions.depth()
    }
}
