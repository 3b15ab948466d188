//! Events of the card: a request arrives at a step.

use std::cmp::Ordering;

/// The steps of a work request, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The doorbell of a list.
    Doorbell,
    /// The unit of its queue pair.
    Unit,
    /// The part that all units share, and that sends.
    Requester,
    /// The way to the peer.
    Wire,
    /// The peer's card.
    Responder,
    /// The way back.
    Return,
    /// The completion is in memory.
    Completion,
}

/// A request arrives at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Model time in ns.
    pub(super) at: u64,
    /// Orders events of the same time.
    pub(super) number: u64,
    /// The request, or the list of a doorbell.
    pub(super) job: usize,
    pub(super) step: Step,
}

impl Ord for Event {
    /// Orders the earliest event as the greatest, for a heap.
    fn cmp(&self, other: &Event) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
