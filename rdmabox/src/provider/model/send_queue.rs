//! The send work requests of a queue pair, and which of them have completed below the model.
//!
//! The inner device completes a request as soon as its bytes have moved. [`SendQueue`] assigns each
//! such completion to its request, so that the model can tell when the card would report it. A
//! request keeps its slot of the send queue until its owner has polled it.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::VecDeque;

/// The send queue of one queue pair as its owner sees it.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// Sequence number of the first entry.
    first: u64,
    /// Whether each request is signaled.
    signaled: VecDeque<bool>,
    /// Sequence number of the first request without an inner completion.
    next: u64,
    /// True after a failure: the order of requests no longer matters.
    failed: bool,
}

impl SendQueue {
    /// Returns the number of slots in use; 0 after a failure, when the inner device counts.
    pub(super) fn slots_in_use(&self) -> usize {
        if self.failed { 0 } else { self.signaled.len() }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Adds posted requests.
    pub(super) fn post(&mut self, signaled: impl Iterator<Item = bool>) {
        self.signaled.extend(signaled);
    }

    /// Removes the last `count` requests, which the inner device refused.
    pub(super) fn refused(&mut self, count: usize) {
        self.signaled.truncate(self.signaled.len() - count);
    }

    /// Notes a successful inner completion. Returns the sequence number of its request.
    pub(super) fn completed(&mut self) -> Option<u64> {
        let from = usize::try_from(self.next - self.first).ok()?;
        let offset = self.signaled.iter().skip(from).position(|signaled| *signaled)?;
        let sequence = self.next + offset as u64;
        self.next = sequence + 1;
        Some(sequence)
    }

    /// Notes that the queue pair failed.
    pub(super) fn fail(&mut self) {
        self.failed = true;
    }

    /// Frees the slots up to `sequence`, whose completion was polled.
    pub(super) fn polled(&mut self, sequence: u64) {
        while self.first <= sequence && self.signaled.pop_front().is_some() {
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_belong_to_signaled_requests_in_order() {
        let mut held = SendQueue::default();
        held.post([false, true, false, false, true].into_iter());
        assert_eq!((held.completed(), held.slots_in_use()), (Some(1), 5));
        held.polled(1);
        assert_eq!(held.slots_in_use(), 3);
        held.post([true, true].into_iter());
        held.refused(1);
        assert_eq!([held.completed(), held.completed(), held.completed()], [Some(4), Some(5), None]);
        held.polled(5);
        assert_eq!(held.slots_in_use(), 0);
    }

    #[test]
    fn after_a_failure_the_inner_device_counts_slots() {
        let mut held = SendQueue::default();
        held.post([true; 4].into_iter());
        held.fail();
        assert_eq!((held.slots_in_use(), held.has_failed()), (0, true));
    }
}
