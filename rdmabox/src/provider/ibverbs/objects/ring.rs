//! The slots and sequence numbers of one direction of a queue pair.
//!
//! The device's `wr_id` of a request holds its sequence number and the index of its ring in the
//! completion queue. So a completion identifies its queue pair and the slots that it frees
//! without a search.
//!
//! # Concurrency
//! Atomics only. The holder of the queue's lock changes `next`; the holder of the completion
//! queue's lock changes `first`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::verbs::WcStatus;

/// The device's `wr_id`, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Index of the ring in its completion queue.
    pub(crate) place: Place,
    /// True for a marker, whose completion shows that every earlier request is complete.
    pub(crate) is_marker: bool,
    pub(crate) sequence: u32,
}

/// Index in a completion queue's table of rings. Reused indices have another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: u16,
    pub(crate) generation: u16,
}

/// Maximum number of rings of a completion queue.
pub(crate) const MAX_PLACES: usize = 1 << 15;

impl Name {
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.is_marker) << 63
            | u64::from(self.place.index) << 48
            | u64::from(self.place.generation) << 32
            | u64::from(self.sequence)
    }

    pub(crate) fn decode(raw: u64) -> Name {
        let place = Place { index: (raw >> 48) as u16 & 0x7fff, generation: (raw >> 32) as u16 };
        Name { place, is_marker: raw >> 63 == 1, sequence: raw as u32 }
    }
}

/// The slots of one direction.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) qp_num: u32,
    pub(crate) is_recv: bool,
    depth: u32,
    /// The callers' `wr_id` by sequence number.
    ids: Box<[AtomicU64]>,
    /// Sequence number of the next request. Changed under the queue's lock.
    next: AtomicU32,
    /// Sequence number of the first request that occupies a slot. Changed under the completion
    /// queue's lock.
    first: AtomicU32,
    /// Request that was posted to fail, and its status; see [`mark_invalid`](Ring::mark_invalid).
    invalid: AtomicU64,
    /// True if a request was posted.
    used: AtomicBool,
    /// True if the marker has completed: the device has finished with every earlier request.
    drained: AtomicBool,
}

impl Ring {
    pub(crate) fn new(qp_num: u32, is_recv: bool, depth: u32) -> Ring {
        let size = depth.max(1).next_power_of_two();
        Ring {
            qp_num,
            is_recv,
            depth,
            ids: (0..size).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU32::new(0),
            first: AtomicU32::new(0),
            invalid: AtomicU64::new(0),
            used: AtomicBool::new(false),
            drained: AtomicBool::new(false),
        }
    }

    /// Returns the number of free slots.
    pub(crate) fn room(&self) -> u32 {
        let used = self.next.load(Ordering::Relaxed).wrapping_sub(self.first.load(Ordering::Acquire));
        self.depth.saturating_sub(used)
    }

    /// Returns the sequence number of the next request.
    pub(crate) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns true if no request was ever posted.
    pub(crate) fn is_fresh(&self) -> bool {
        !self.used.load(Ordering::Relaxed)
    }

    /// Records the caller's `wr_id` of request `sequence` before it is posted.
    pub(crate) fn record(&self, sequence: u32, wr_id: u64) {
        self.id(sequence).store(wr_id, Ordering::Release);
    }

    /// Occupies slots for `count` posted requests.
    pub(crate) fn advance(&self, count: u32) {
        self.used.store(true, Ordering::Relaxed);
        self.next.store(self.next().wrapping_add(count), Ordering::Relaxed);
    }

    /// Returns the caller's `wr_id` of a request.
    pub(crate) fn wr_id(&self, sequence: u32) -> u64 {
        self.id(sequence).load(Ordering::Acquire)
    }

    /// Frees the slots before sequence number `end`. Slots that are free already stay free.
    pub(crate) fn free_until(&self, end: u32) {
        if end.wrapping_sub(self.first.load(Ordering::Relaxed)) <= self.depth {
            self.first.store(end, Ordering::Release);
        }
    }

    /// Records that request `sequence` is invalid and posted as a request that the device refuses.
    /// It completes with `status`. Only the first invalid request of a queue pair gets this far.
    pub(crate) fn mark_invalid(&self, sequence: u32, status: WcStatus) {
        let invalid = 1 << 63 | u64::from(status.code()) << 32 | u64::from(sequence);
        let _ = self.invalid.compare_exchange(0, invalid, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns the status of an invalid request.
    pub(crate) fn invalid_status(&self, sequence: u32) -> Option<WcStatus> {
        let invalid = self.invalid.load(Ordering::Acquire);
        (invalid >> 63 == 1 && invalid as u32 == sequence)
            .then(|| WcStatus::from_code((invalid >> 32) as u32 & 0xff))
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    pub(crate) fn set_drained(&self) {
        self.drained.store(true, Ordering::Release);
    }

    fn id(&self, sequence: u32) -> &AtomicU64 {
        // The size is a power of two.
        &self.ids[sequence as usize & (self.ids.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn request_names_round_trip(index in 0..MAX_PLACES as u16, generation: u16, is_marker: bool, sequence: u32) {
            let name = Name { place: Place { index, generation }, is_marker, sequence };
            prop_assert_eq!(Name::decode(name.encode()), name);
        }
    }

    #[test]
    fn the_first_invalid_request_is_recorded() {
        let ring = Ring::new(1, false, 8);
        assert_eq!(ring.invalid_status(0), None);
        ring.mark_invalid(0, WcStatus::RemInvReqErr);
        ring.mark_invalid(1, WcStatus::LocProtErr);
        assert_eq!((ring.invalid_status(0), ring.invalid_status(1)), (Some(WcStatus::RemInvReqErr), None));
    }

    #[test]
    fn a_completion_frees_all_earlier_slots() {
        let ring = Ring::new(1, false, 5);
        ring.next.store(u32::MAX - 1, Ordering::Relaxed);
        ring.first.store(u32::MAX - 1, Ordering::Relaxed);
        for (i, id) in (10..15).enumerate() {
            ring.record(ring.next().wrapping_add(i as u32), id);
        }
        ring.advance(5);
        assert_eq!(ring.room(), 0);
        assert_eq!(ring.wr_id(u32::MAX), 11);
        assert_eq!(ring.wr_id(0), 12);
        // Frees three slots, up to sequence number 0 after the wrap.
        ring.free_until(1);
        assert_eq!(ring.room(), 3);
        // An outdated completion changes nothing.
        ring.free_until(u32::MAX);
        assert_eq!(ring.room(), 3);
        ring.free_until(ring.next());
        assert_eq!(ring.room(), 5);
    }
}
