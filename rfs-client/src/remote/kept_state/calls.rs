//! Calls in flight in the kept state, and the replies of the server to those of the previous
//! process.
//!
//! # Concurrency
//! Any thread. [`PreviousReplies`] has one lock, held briefly.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use rfs_proto::SLOTS;

use super::{
    area::Area,
    layout::{CALL_HEADER, CALL_LEN, CALLS, MAX_ENVELOPE},
};

/// The owner of the slots of calls.
pub(crate) trait KeptCalls: Send + Sync {
    /// Frees the slots of calls whose request is answered.
    fn end_calls(&self, slots: &[(u32, u64)]);
}

impl std::fmt::Debug for dyn KeptCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeptCalls")
    }
}

/// A call in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptCall {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    /// The kernel's number of the request, or 0.
    pub(crate) unique: u64,
    /// Ordinal of the call in the request.
    pub(crate) ordinal: u32,
    /// The envelope; empty if it was too long.
    pub(crate) envelope: Vec<u8>,
}

/// A call of the previous process, which the server has answered.
#[derive(Debug)]
pub(crate) struct KeptReply {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    /// First byte of the request, which tells its kind.
    pub(crate) kind: Option<u8>,
    /// The reply. `None` if the call was too long to be kept: it is repeated with its number.
    pub(crate) reply: Option<Vec<u8>>,
}

fn call_at(slot: u32) -> usize {
    CALLS + CALL_LEN * slot as usize
}

/// Returns the last sequence number of each slot.
pub(super) fn sequences(area: &Area) -> Vec<u64> {
    (0..SLOTS).map(|slot| area.word(call_at(slot)).load(Ordering::Acquire) / 2).collect()
}

/// Writes a call down.
pub(super) fn begin(
    area: &Area,
    (slot, sequence): (u32, u64),
    (unique, ordinal): (u64, u32),
    envelope: &[u8],
) {
    let at = call_at(slot);
    let kept = if envelope.len() > MAX_ENVELOPE { &[][..] } else { envelope };
    area.word(at + 8).store(unique, Ordering::Relaxed);
    area.half(at + 16).store(ordinal, Ordering::Relaxed);
    area.half(at + 20).store(kept.len() as u32, Ordering::Relaxed);
    area.store_bytes(at + CALL_HEADER, kept);
    area.word(at).store(sequence * 2 + 1, Ordering::Release);
}

/// Removes a call.
pub(super) fn end(area: &Area, (slot, sequence): (u32, u64)) {
    area.word(call_at(slot)).store(sequence * 2, Ordering::Release);
}

/// Reads the calls that are in flight.
pub(super) fn in_flight(area: &Area) -> Vec<KeptCall> {
    let of = |slot| {
        let at = call_at(slot);
        let state = area.word(at).load(Ordering::Acquire);
        (state % 2 == 1).then(|| KeptCall {
            slot,
            sequence: state / 2,
            unique: area.word(at + 8).load(Ordering::Relaxed),
            ordinal: area.half(at + 16).load(Ordering::Relaxed),
            envelope: {
                let len = area.half(at + 20).load(Ordering::Relaxed) as usize;
                area.load_bytes(at + CALL_HEADER, len.min(MAX_ENVELOPE))
            },
        })
    };
    (0..SLOTS).filter_map(of).collect()
}

/// Replies to the calls of repeated requests, by request and ordinal.
#[derive(Debug, Default)]
pub(crate) struct PreviousReplies {
    replies: Mutex<HashMap<(u64, u32), KeptReply>>,
    /// Number of replies, which is 0 as a rule.
    count: AtomicUsize,
}

impl PreviousReplies {
    /// Notes the reply to a call of a repeated request.
    pub(crate) fn add(&self, call: &KeptCall, kind: Option<u8>, reply: Option<Vec<u8>>) {
        let &KeptCall { slot, sequence, unique, ordinal, .. } = call;
        let mut replies = self.replies.lock();
        replies.insert((unique, ordinal), KeptReply { slot, sequence, kind, reply });
        self.count.store(replies.len(), Ordering::Release);
    }

    /// Takes the reply to a call of a repeated request.
    pub(crate) fn take(&self, unique: u64, ordinal: u32) -> Option<KeptReply> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut replies = self.replies.lock();
        let reply = replies.remove(&(unique, ordinal));
        self.count.store(replies.len(), Ordering::Release);
        reply
    }

    /// Returns true if there are replies to calls of a repeated request that it has not used.
    pub(crate) fn has(&self, unique: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.replies.lock().keys().any(|(request, _)| *request == unique)
    }

    /// Drops the replies that a repeated request has not used. Returns their slots.
    pub(crate) fn drop_unused(&self, unique: u64) -> Vec<(u32, u64)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut replies = self.replies.lock();
        let unused = replies
            .extract_if(|(request, _), _| *request == unique)
            .map(|(_, reply)| (reply.slot, reply.sequence))
            .collect();
        self.count.store(replies.len(), Ordering::Release);
        unused
    }
}
