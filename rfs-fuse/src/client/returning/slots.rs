//! Numbers for requests that are carried out once. Pure.
//!
//! A slot has one request under way; each of them gets a higher number than the one before it there. So the server need keep one
//! reply for each slot, and knows by the next number that it has arrived.

/// A request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) slot: u32,
    pub(super) sequence: u64,
}

/// The slots of a mount.
#[derive(Debug)]
pub(super) struct Slots {
    /// The last number of each.
    sequences: Vec<u64>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) fn new(count: u32) -> Slots {
        // The first one is used most, so that a server hears of few.
        Slots { sequences: vec![0; count as usize], free: (0..count).rev().collect() }
    }

    /// The number of one more request, if fewer than there are slots are under way.
    pub(super) fn take(&mut self) -> Option<Number> {
        let slot = self.free.pop()?;
        let last = &mut self.sequences[slot as usize];
        *last += 1;
        Some(Number { slot, sequence: *last })
    }

    /// The request is over: its reply has come, or nobody waits for it any more.
    pub(super) fn give_back(&mut self, number: Number) {
        debug_assert!(!self.free.contains(&number.slot), "given back twice");
        self.free.push(number.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_higher_each_time() {
        let mut slots = Slots::new(2);
        let (one, two) = (slots.take().unwrap(), slots.take().unwrap());
        assert_eq!((one, two), (Number { slot: 0, sequence: 1 }, Number { slot: 1, sequence: 1 }));
        assert_eq!(slots.take(), None);
        slots.give_back(one);
        assert_eq!(slots.take(), Some(Number { slot: 0, sequence: 2 }));
        slots.give_back(two);
        assert_eq!(slots.take(), Some(Number { slot: 1, sequence: 2 }));
    }
}
