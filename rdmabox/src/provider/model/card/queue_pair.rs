//! The completion times of a queue pair's requests, which its owner sees in posting order.
//!
//! No I/O, no locks, no clock.

use std::collections::VecDeque;

use super::PeerKey;

/// A queue pair on the card.
#[derive(Debug)]
pub(super) struct CardQp {
    /// Number of its context, which no later queue pair has.
    pub(super) context: u64,
    pub(super) unit: usize,
    pub(super) peer: PeerKey,
    pub(super) is_removed: bool,
    /// Sequence number of the first entry.
    first: u64,
    /// Completion time of each request; `None` while it is on the card.
    times: VecDeque<Option<u64>>,
    /// Requests of the entries that are complete, counted from the first without a gap, and the
    /// latest of their times.
    done: (u64, u64),
}

impl CardQp {
    pub(super) fn new(context: u64, unit: usize, peer: PeerKey) -> CardQp {
        CardQp { context, unit, peer, is_removed: false, first: 0, times: VecDeque::new(), done: (0, 0) }
    }

    /// Adds a request. Returns its sequence number.
    pub(super) fn post(&mut self) -> u64 {
        self.times.push_back(None);
        self.first + self.times.len() as u64 - 1
    }

    /// Notes the completion of a request. A request completes no earlier than the request before
    /// it.
    pub(super) fn complete(&mut self, sequence: u64, at: u64) {
        if let Some(time) = self.times.get_mut((sequence - self.first) as usize) {
            *time = Some(at);
        }
        while let Some(Some(time)) = self.times.get_mut((self.done.0 - self.first) as usize) {
            *time = (*time).max(self.done.1);
            self.done = (self.done.0 + 1, *time);
        }
    }

    /// Returns the completion time of a request if it and all before it are complete.
    pub(super) fn completion(&self, sequence: u64) -> Option<u64> {
        if sequence >= self.done.0 {
            return None;
        }
        // A request that was forgotten completed before all others.
        let index = sequence.checked_sub(self.first);
        Some(index.and_then(|index| *self.times.get(index as usize)?).unwrap_or(0))
    }

    /// Forgets the times of completed requests up to `sequence`.
    pub(super) fn forget(&mut self, sequence: u64) {
        while self.first <= sequence && self.first < self.done.0 {
            self.times.pop_front();
            self.first += 1;
        }
    }

    /// Returns true if its owner has removed it and no request is on the card.
    pub(super) fn is_over(&self) -> bool {
        self.is_removed && self.done.0 == self.first + self.times.len() as u64
    }
}
