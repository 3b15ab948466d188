//! Decides whether a worker looks for events several times before it sleeps.
//!
//! A client that waits for each answer sends its next command a few microseconds later. A worker
//! that sleeps meanwhile needs longer to wake. Looks in vain end the looking for a while.
//!
//! # Concurrency
//! A plain value of one worker.

/// Looks for events before a sleep.
const LOOKS: u32 = 8;
/// Sleeps in a row, after looks in vain, that end the looking.
const MISSES: u32 = 4;
/// Sleeps until the worker looks again.
const REST: u32 = 32;

/// The recent luck of a worker.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    rest: u32,
    misses: u32,
}

impl BusyPoll {
    /// Returns how often to look before the next sleep.
    pub(super) fn looks(&mut self) -> u32 {
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        LOOKS
    }

    /// Notes whether looks have found events.
    pub(super) fn note(&mut self, is_found: bool) {
        self.misses = if is_found { 0 } else { self.misses + 1 };
        if self.misses == MISSES {
            (self.rest, self.misses) = (REST, MISSES - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_end_the_looking_for_a_while() {
        let mut poll = BusyPoll::default();
        for _ in 0..MISSES {
            assert_eq!(poll.looks(), LOOKS);
            poll.note(false);
        }
        let rests = |poll: &mut BusyPoll| {
            std::iter::repeat_with(|| poll.looks()).take_while(|looks| *looks == 0).count()
        };
        assert_eq!(rests(&mut poll), REST as usize);
        poll.note(false);
        assert_eq!(rests(&mut poll), REST as usize);
        poll.note(true);
        poll.note(false);
        assert_eq!(poll.looks(), LOOKS);
    }
}
