//! Events in the order of their times. No I/O, no locks, no clock.
//!
//! Events of one time come in the order in which they were added, so equal inputs give equal runs.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Simulated time in nanoseconds.
pub type Nanos = u64;

/// Nanoseconds of a second.
pub const SECOND: Nanos = 1_000_000_000;

/// Future events.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Reverse<(Nanos, u64, E)>>,
    added: u64,
}

impl<E: Ord> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<E: Ord> Events<E> {
    /// Adds an event.
    pub fn add(&mut self, at: Nanos, event: E) {
        self.heap.push(Reverse((at, self.added, event)));
        self.added += 1;
    }

    /// Removes the next event, and returns it with its time.
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an order by the event where times are equal.
    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut events = Events::default();
        for (at, event) in [(5, 'z'), (3, 'y'), (5, 'a'), (3, 'x')] {
            events.add(at, event);
        }
        let all: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(all, [(3, 'y'), (3, 'x'), (5, 'z'), (5, 'a')]);
    }
}
