//! Slots and sequence numbers of requests that the server carries out exactly once. No I/O, no
//! locks, no clock.
//!
//! A slot has one request in flight. Each request of a slot gets the next higher number. The
//! server therefore caches one reply per slot, and a higher number tells it that the cached reply
//! has arrived.

/// Slot and sequence number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotSeq {
    pub(super) slot: u32,
    pub(super) sequence: u64,
}

/// The slots of a mount.
#[derive(Debug)]
pub(super) struct RequestSlots {
    /// Last number of each slot.
    sequences: Vec<u64>,
    free: Vec<u32>,
}

impl RequestSlots {
    pub(super) fn new(count: u32) -> RequestSlots {
        // Slot 0 comes first, so that few requests in flight use few slots of the server.
        RequestSlots { sequences: vec![0; count as usize], free: (0..count).rev().collect() }
    }

    /// Continues the numbers of a previous process. The slots `taken` have calls in flight.
    pub(super) fn continued(sequences: Vec<u64>, taken: &[u32]) -> RequestSlots {
        let count = u32::try_from(sequences.len()).unwrap_or(u32::MAX);
        let free = (0..count).rev().filter(|slot| !taken.contains(slot)).collect();
        RequestSlots { sequences, free }
    }

    /// Returns the number of one more request, or `None` if all slots are in use.
    pub(super) fn take(&mut self) -> Option<SlotSeq> {
        let slot = self.free.pop()?;
        let last = &mut self.sequences[slot as usize];
        *last += 1;
        Some(SlotSeq { slot, sequence: *last })
    }

    /// Frees the slot of a request that was answered or abandoned.
    pub(super) fn release(&mut self, number: SlotSeq) {
        debug_assert!(!self.free.contains(&number.slot), "given back twice");
        self.free.push(number.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_request_at_a_time_and_rising_numbers() {
        let mut slots = RequestSlots::new(2);
        let (one, two) = (slots.take().unwrap(), slots.take().unwrap());
        assert_eq!((one, two), (SlotSeq { slot: 0, sequence: 1 }, SlotSeq { slot: 1, sequence: 1 }));
        assert_eq!(slots.take(), None);
        slots.release(one);
        assert_eq!(slots.take(), Some(SlotSeq { slot: 0, sequence: 2 }));
        slots.release(two);
        assert_eq!(slots.take(), Some(SlotSeq { slot: 1, sequence: 2 }));
    }
}
