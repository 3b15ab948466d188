//! One direction of a queue pair: which of its places are taken, and what its requests are called.
//!
//! A request is known to the device by its sequence number, which goes into the device's `wr_id` beside the place of the
//! ring in its completion queue. So a completion says by itself how many places it frees, whose it is, and whether
//! that queue pair is still there, without a search. Pure, but for the atomics.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::verbs::WcStatus;

/// The device's `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Of the ring in its completion queue.
    pub(super) place: Place,
    /// The request says only that everything before it is over.
    pub(super) is_marker: bool,
    pub(super) sequence: u32,
}

/// A place in a completion queue's table of rings. Places are used again, under another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) index: u16,
    pub(super) generation: u16,
}

/// Most rings of a completion queue.
pub(super) const MAX_PLACES: usize = 1 << 15;

impl Name {
    pub(super) fn encode(self) -> u64 {
        u64::from(self.is_marker) << 63
            | u64::from(self.place.index) << 48
            | u64::from(self.place.generation) << 32
            | u64::from(self.sequence)
    }

    pub(super) fn decode(raw: u64) -> Name {
        let place = Place { index: (raw >> 48) as u16 & 0x7fff, generation: (raw >> 32) as u16 };
        Name { place, is_marker: raw >> 63 == 1, sequence: raw as u32 }
    }
}

/// The places of one direction.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) qp_num: u32,
    pub(super) is_recv: bool,
    depth: u32,
    /// What callers call their requests, by sequence number.
    ids: Box<[AtomicU64]>,
    /// Sequence number of the next request. Changed by whoever holds the queue's lock.
    next: AtomicU32,
    /// Sequence number of the first request that takes a place. Changed by whoever holds the completion queue's lock.
    first: AtomicU32,
    /// A request that was posted in order to fail, and how: [`doom`](Ring::doom).
    doomed: AtomicU64,
    /// Something was posted.
    used: AtomicBool,
    /// The marker has come back: the device is done with everything that was posted before it.
    quiet: AtomicBool,
}

impl Ring {
    pub(super) fn new(qp_num: u32, is_recv: bool, depth: u32) -> Ring {
        let size = depth.max(1).next_power_of_two();
        Ring {
            qp_num,
            is_recv,
            depth,
            ids: (0..size).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU32::new(0),
            first: AtomicU32::new(0),
            doomed: AtomicU64::new(0),
            used: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
        }
    }

    /// Places that are free.
    pub(super) fn room(&self) -> u32 {
        let used = self.next.load(Ordering::Relaxed).wrapping_sub(self.first.load(Ordering::Acquire));
        self.depth.saturating_sub(used)
    }

    /// Sequence number of the next request.
    pub(super) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// True if nothing was ever posted.
    pub(super) fn is_fresh(&self) -> bool {
        !self.used.load(Ordering::Relaxed)
    }

    /// Notes what the caller calls request `sequence`, for which there is room. It is not posted yet.
    pub(super) fn note(&self, sequence: u32, wr_id: u64) {
        self.id(sequence).store(wr_id, Ordering::Release);
    }

    /// Takes places for `count` requests that have been posted.
    pub(super) fn advance(&self, count: u32) {
        self.used.store(true, Ordering::Relaxed);
        self.next.store(self.next().wrapping_add(count), Ordering::Relaxed);
    }

    /// What the caller calls a request.
    pub(super) fn wr_id(&self, sequence: u32) -> u64 {
        self.id(sequence).load(Ordering::Acquire)
    }

    /// Gives back the places up to `end`, which is not included. One that has been given back is not taken again.
    pub(super) fn free_until(&self, end: u32) {
        if end.wrapping_sub(self.first.load(Ordering::Relaxed)) <= self.depth {
            self.first.store(end, Ordering::Release);
        }
    }

    /// Notes that request `sequence` cannot be carried out, and is posted as one that the device refuses in its turn: it ends
    /// with `status`. Only the first such request ever gets so far.
    pub(super) fn doom(&self, sequence: u32, status: WcStatus) {
        let doomed = 1 << 63 | u64::from(status.code()) << 32 | u64::from(sequence);
        let _ = self.doomed.compare_exchange(0, doomed, Ordering::AcqRel, Ordering::Acquire);
    }

    /// How a doomed request ends.
    pub(super) fn doom_of(&self, sequence: u32) -> Option<WcStatus> {
        let doomed = self.doomed.load(Ordering::Acquire);
        (doomed >> 63 == 1 && doomed as u32 == sequence)
            .then(|| WcStatus::from_code((doomed >> 32) as u32 & 0xff))
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Acquire)
    }

    pub(super) fn set_quiet(&self) {
        self.quiet.store(true, Ordering::Release);
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
        fn names_round_trip(index in 0..MAX_PLACES as u16, generation: u16, is_marker: bool, sequence: u32) {
            let name = Name { place: Place { index, generation }, is_marker, sequence };
            prop_assert_eq!(Name::decode(name.encode()), name);
        }
    }

    #[test]
    fn the_first_doomed_request_is_remembered() {
        let ring = Ring::new(1, false, 8);
        assert_eq!(ring.doom_of(0), None);
        ring.doom(0, WcStatus::RemInvReqErr);
        ring.doom(1, WcStatus::LocProtErr);
        assert_eq!((ring.doom_of(0), ring.doom_of(1)), (Some(WcStatus::RemInvReqErr), None));
    }

    #[test]
    fn places_come_back_with_the_completion_behind_them() {
        let ring = Ring::new(1, false, 5);
        ring.next.store(u32::MAX - 1, Ordering::Relaxed);
        ring.first.store(u32::MAX - 1, Ordering::Relaxed);
        for (i, id) in (10..15).enumerate() {
            ring.note(ring.next().wrapping_add(i as u32), id);
        }
        ring.advance(5);
        assert_eq!(ring.room(), 0);
        assert_eq!(ring.wr_id(u32::MAX), 11);
        assert_eq!(ring.wr_id(0), 12);
        // The third of them: sequence number 0, after the wrap.
        ring.free_until(1);
        assert_eq!(ring.room(), 3);
        // Late news of what is free already changes nothing.
        ring.free_until(u32::MAX);
        assert_eq!(ring.room(), 3);
        ring.free_until(ring.next());
        assert_eq!(ring.room(), 5);
    }
}
