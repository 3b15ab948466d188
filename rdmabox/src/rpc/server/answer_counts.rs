//! Counts of the answers that a host has given to calls.

use crate::stats::Counter;

/// Counters of the answers of a call server.
#[derive(Debug, Default)]
pub(super) struct AnswerCounters {
    pub(super) messages: Counter,
    pub(super) in_memory: Counter,
    pub(super) written: Counter,
}

/// Counts of the answers that a host has given to calls
/// ([`HostHandle::answers`](crate::HostHandle::answers)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnswerCounts {
    /// Messages that the host has sent: replies, and notes that a reply is deferred or is in
    /// memory.
    pub messages: u64,
    /// Replies that the host has written to its own memory, without a request to a device.
    pub in_memory: u64,
    /// Replies that the host has WRITTEN to memory of the client.
    pub written: u64,
}

impl std::ops::Add for AnswerCounts {
    type Output = AnswerCounts;

    fn add(self, other: AnswerCounts) -> AnswerCounts {
        AnswerCounts {
            messages: self.messages + other.messages,
            in_memory: self.in_memory + other.in_memory,
            written: self.written + other.written,
        }
    }
}

impl std::ops::Sub for AnswerCounts {
    type Output = AnswerCounts;

    fn sub(self, earlier: AnswerCounts) -> AnswerCounts {
        AnswerCounts {
            messages: self.messages - earlier.messages,
            in_memory: self.in_memory - earlier.in_memory,
            written: self.written - earlier.written,
        }
    }
}
