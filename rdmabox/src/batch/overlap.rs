//! Tracks outstanding remote ranges, so that no request overtakes an overlapping request.
//!
//! [`InFlight`] is a set of ranges. The insertion returns a handle, which the removal consumes,
//! so no range is removed twice. The set does not decide which request waits.
//!
//! # Concurrency
//! No I/O, no locks, no clock. One owner.

use crate::verbs::RemoteAddr;

/// First and last byte of a non-empty range. A range beyond the end of the address space is clamped
/// there. The peer will refuse the request, but until then the request is ordered like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Span {
    /// Span that overlaps nothing, not even itself. No real range has `first > last`.
    const NOTHING: Span = Span { first: u64::MAX, last: 0 };

    /// Returns the span of a request, or [`Span::NOTHING`] for an empty range.
    pub(super) fn new(remote: RemoteAddr, len: u64) -> Span {
        match len {
            0 => Span::NOTHING,
            _ => Span { first: remote.addr, last: remote.addr.saturating_add(len - 1) },
        }
    }

    pub(super) fn overlaps(self, other: Span) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Returns true if two remote ranges of one peer have a byte in common.
pub(crate) fn ranges_overlap(one: (RemoteAddr, u64), other: (RemoteAddr, u64)) -> bool {
    Span::new(one.0, one.1).overlaps(Span::new(other.0, other.1))
}

/// Identifies a range in an [`InFlight`] set.
#[derive(Debug)]
#[must_use = "the range stays in the set until it is removed with this handle"]
pub(crate) struct InFlightHandle(u32);

/// A set of remote ranges of one peer. Ranges may overlap each other.
///
/// Only addresses are compared. All keys of a peer refer to one address space, so equal addresses
/// are equal bytes for any key.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    spans: Vec<Span>,
    free: Vec<u32>,
}

impl InFlight {
    /// Creates an empty set.
    pub(crate) fn new() -> InFlight {
        InFlight::default()
    }

    /// Adds a range and returns the handle for its removal.
    pub(crate) fn insert(&mut self, remote: RemoteAddr, len: u64) -> InFlightHandle {
        let span = Span::new(remote, len);
        match self.free.pop() {
            Some(slot) => {
                self.spans[slot as usize] = span;
                InFlightHandle(slot)
            }
            None => {
                self.spans.push(span);
                InFlightHandle((self.spans.len() - 1) as u32)
            }
        }
    }

    /// Removes a range of this set.
    pub(crate) fn remove(&mut self, handle: InFlightHandle) {
        self.spans[handle.0 as usize] = Span::NOTHING;
        self.free.push(handle.0);
        if self.free.len() == self.spans.len() {
            self.spans.clear();
            self.free.clear();
        }
    }

    /// Returns true if the range overlaps a range of the set. An empty range overlaps nothing.
    pub(crate) fn overlaps(&self, remote: RemoteAddr, len: u64) -> bool {
        let span = Span::new(remote, len);
        self.spans.iter().any(|other| other.overlaps(span))
    }

    /// Returns the number of ranges, including empty ranges.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.spans.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: 1 }
    }

    #[test]
    fn a_range_overlaps_up_to_its_first_and_last_byte() {
        let mut set = InFlight::new();
        assert!(!set.overlaps(at(0), u64::MAX));
        let handle = set.insert(at(100), 50);
        assert!(!set.overlaps(at(99), 1));
        assert!(set.overlaps(at(99), 2));
        assert!(set.overlaps(at(149), 1));
        assert!(!set.overlaps(at(150), 1));
        assert!(!set.overlaps(at(120), 0));
        assert!(set.overlaps(RemoteAddr { addr: 120, rkey: 2 }, 1), "another key, the same bytes");
        set.remove(handle);
        assert!(!set.overlaps(at(100), 50));
    }

    #[test]
    fn a_range_beyond_the_address_space_ends_there() {
        let mut set = InFlight::new();
        let _past = set.insert(at(u64::MAX - 9), 1000);
        assert!(set.overlaps(at(u64::MAX), 1));
        assert!(set.overlaps(at(u64::MAX), u64::MAX));
        assert!(!set.overlaps(at(u64::MAX - 10), 1));
        assert!(!set.overlaps(at(0), 10), "it does not wrap");
        let mut set = InFlight::new();
        let _all = set.insert(at(0), u64::MAX);
        assert!(!set.overlaps(at(u64::MAX), 1));
        assert!(set.overlaps(at(u64::MAX - 1), 1));
    }

    #[test]
    fn slots_are_reused() {
        let mut set = InFlight::new();
        set.spans.reserve(4);
        let capacity = set.spans.capacity();
        for round in 0..100u64 {
            let handles: Vec<_> = (0..4).map(|i| set.insert(at(round + 100 * i), 10)).collect();
            for handle in handles {
                set.remove(handle);
            }
        }
        assert_eq!(set.spans.capacity(), capacity);
        assert_eq!(set.len(), 0);
    }

    #[derive(Clone, Debug)]
    enum Action {
        Insert(u64, u64),
        Remove(usize),
        Ask(u64, u64),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            (0..200u64, 0..20u64).prop_map(|(addr, len)| Action::Insert(addr, len)),
            any::<usize>().prop_map(Action::Remove),
            (0..200u64, 0..20u64).prop_map(|(addr, len)| Action::Ask(addr, len)),
        ]
    }

    proptest! {
        #[test]
        fn the_set_behaves_like_a_list_of_ranges(actions in prop::collection::vec(action(), 0..200)) {
            let mut set = InFlight::new();
            let mut model: Vec<(InFlightHandle, u64, u64)> = Vec::new();
            for action in actions {
                match action {
                    Action::Insert(addr, len) => model.push((set.insert(at(addr), len), addr, len)),
                    Action::Remove(_) if model.is_empty() => {}
                    Action::Remove(index) => set.remove(model.swap_remove(index % model.len()).0),
                    Action::Ask(addr, len) => {
                        let expected = (addr..addr + len)
                            .any(|byte| model.iter().any(|&(_, a, l)| (a..a + l).contains(&byte)));
                        prop_assert_eq!(set.overlaps(at(addr), len), expected);
                    }
                }
                prop_assert_eq!(set.len(), model.len());
            }
        }
    }
}
