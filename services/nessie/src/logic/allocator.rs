//! Which entries of a node's data table are in use.
//!
//! An entry is used again only `delay` after its owner learned that no slot refers to it. An
//! operation that takes longer than the delay fails, so no operation finds another entry in the
//! place of the one that it looked for. The owner learns of removed references from the head words
//! that other clients mark. No I/O, no locks, no clock: the caller gives the time.

use std::collections::VecDeque;

use super::entry::split_head;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Unused,
    /// An operation of this node holds the entry.
    Held {
        is_released: bool,
    },
    /// A slot may refer to the entry.
    Used,
    /// No slot refers to the entry.
    Waiting,
}

/// The entries of a data table, from 1 on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Allocator {
    states: Vec<State>,
    unused: Vec<u32>,
    /// When an entry may be used again, the earliest first.
    waiting: VecDeque<(u64, u32)>,
    delay: u64,
    /// The next entry whose head is looked at.
    hand: usize,
}

/// Why there is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// An entry is unused from this time on.
    Until(u64),
    /// Slots refer to all entries.
    Full,
}

impl Allocator {
    /// Manages `entries` entries, all of them unused.
    pub(crate) fn new(entries: u32, delay: u64) -> Allocator {
        Allocator {
            states: vec![State::Unused; entries as usize],
            unused: (1..=entries).rev().collect(),
            waiting: VecDeque::new(),
            delay,
            hand: 0,
        }
    }

    fn state(&mut self, offset: u32) -> &mut State {
        &mut self.states[offset as usize - 1]
    }

    /// Takes an unused entry. The caller holds it until [`Self::end_hold`]. `head` returns the head
    /// word of an entry.
    ///
    /// # Errors
    /// [`Shortage`] if there is none.
    pub(crate) fn take(&mut self, now: u64, head: impl Fn(u32) -> u64) -> Result<u32, Shortage> {
        self.ripen(now);
        if self.unused.is_empty() {
            self.collect(now, head);
        }
        if let Some(shortage) = self.shortage(now) {
            return Err(shortage);
        }
        let offset = self.unused.pop().expect("checked");
        *self.state(offset) = State::Held { is_released: false };
        Ok(offset)
    }

    /// Returns why there is no unused entry, or `None` if there is one. It does not look at heads:
    /// [`take`](Self::take) has done so.
    pub(crate) fn shortage(&mut self, now: u64) -> Option<Shortage> {
        self.ripen(now);
        let waiting = self.waiting.front();
        let shortage = waiting.map_or(Shortage::Full, |(ready, _)| Shortage::Until(*ready));
        self.unused.is_empty().then_some(shortage)
    }

    fn ripen(&mut self, now: u64) {
        while let Some(&(ready, offset)) = self.waiting.front()
            && ready <= now
        {
            self.waiting.pop_front();
            *self.state(offset) = State::Unused;
            self.unused.push(offset);
        }
    }

    /// Looks for marked heads once around the table, or until as many as a batch are found.
    fn collect(&mut self, now: u64, head: impl Fn(u32) -> u64) {
        const BATCH: usize = 64;
        let mut found = 0;
        for _ in 0..self.states.len() {
            let at = self.hand;
            self.hand = (at + 1) % self.states.len();
            if self.states[at] == State::Used && split_head(head(at as u32 + 1)).1 {
                self.release(at as u32 + 1, now);
                found += 1;
            }
            if found == BATCH {
                return;
            }
        }
    }

    /// Notes that no slot refers to the entry any more.
    pub(crate) fn release(&mut self, offset: u32, now: u64) {
        let ready = now + self.delay;
        match self.state(offset) {
            State::Held { is_released } => *is_released = true,
            state @ State::Used => {
                *state = State::Waiting;
                self.waiting.push_back((ready, offset));
            }
            State::Unused | State::Waiting => {}
        }
    }

    /// Ends the hold of the operation that took the entry.
    pub(crate) fn end_hold(&mut self, offset: u32, now: u64) {
        if let State::Held { is_released } = *self.state(offset) {
            *self.state(offset) = State::Used;
            if is_released {
                self.release(offset, now);
            }
        }
    }

    /// Returns the entries to which a slot may refer and that no operation holds.
    pub(crate) fn used(&self) -> impl Iterator<Item = u32> {
        (1..).zip(&self.states).filter(|(_, state)| **state == State::Used).map(|(offset, _)| offset)
    }

    /// Returns the numbers of unused entries, of entries that wait, and of all.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.unused.len(), self.waiting.len(), self.states.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::entry::head;

    #[test]
    fn an_entry_is_used_again_after_the_delay() {
        let mut entries = Allocator::new(1, 10);
        let live = |_| head(1, false);
        let first = entries.take(0, live).expect("unused");
        assert_eq!(entries.take(1, live), Err(Shortage::Full));
        entries.end_hold(first, 2);
        assert_eq!(entries.take(3, live), Err(Shortage::Full));
        // A client marks the head.
        let marked = |_| head(1, true);
        assert_eq!(entries.take(5, marked), Err(Shortage::Until(15)));
        assert_eq!(entries.take(14, marked), Err(Shortage::Until(15)));
        assert_eq!(entries.take(15, marked), Ok(first));
    }

    #[test]
    fn a_held_entry_waits_from_the_end_of_the_hold() {
        let mut entries = Allocator::new(1, 10);
        let live = |_| head(1, false);
        let first = entries.take(0, live).expect("unused");
        entries.release(first, 1);
        assert_eq!(entries.take(20, live), Err(Shortage::Full));
        entries.end_hold(first, 30);
        assert_eq!(entries.take(39, live), Err(Shortage::Until(40)));
        assert_eq!(entries.take(40, live), Ok(first));
    }

    proptest! {
        #[test]
        fn no_entry_is_lost_or_used_twice(steps in prop::collection::vec((0u8..4, 0usize..8, 0u64..7), 1..200)) {
            let mut entries = Allocator::new(5, 4);
            let (mut held, mut used) = (Vec::new(), Vec::new());
            let mut now = 0;
            for (kind, pick, time) in steps {
                now += time;
                match kind {
                    0 => if let Ok(offset) = entries.take(now, |_| 0) {
                        prop_assert!(!held.contains(&offset) && !used.contains(&offset));
                        held.push(offset);
                    },
                    1 if !held.is_empty() => {
                        let offset = held.swap_remove(pick % held.len());
                        entries.end_hold(offset, now);
                        used.push(offset);
                    }
                    2 if !used.is_empty() => entries.release(used.swap_remove(pick % used.len()), now),
                    _ => {}
                }
                let (unused, waiting, all) = entries.counts();
                prop_assert_eq!(unused + waiting + held.len() + used.len(), all);
            }
        }
    }
}
