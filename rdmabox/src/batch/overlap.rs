//! The remote ranges that are under way, to hold back a request that would overtake an overlapping one.
//!
//! One owner, no locks. A range is removed with the handle that its insertion gave, so that no range can be
//! removed twice. It does not decide what has to wait, and it does not wait.

use crate::verbs::RemoteAddr;

/// First and last byte of a non-empty range. A range that runs past the end of the address space ends there: the
/// peer will refuse it, but until then it has to be ordered like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Span {
    /// Overlaps nothing, not even itself: no range both starts at zero and reaches the last byte.
    const NOTHING: Span = Span { first: u64::MAX, last: 0 };

    /// The bytes of a request; [`Span::NOTHING`] for none.
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

/// True if two remote ranges of one peer have a byte in common.
pub(crate) fn ranges_overlap(one: (RemoteAddr, u64), other: (RemoteAddr, u64)) -> bool {
    Span::new(one.0, one.1).overlaps(Span::new(other.0, other.1))
}

/// Names a range in an [`InFlight`] set.
#[derive(Debug)]
#[must_use = "the range stays in the set until it is removed with this handle"]
pub struct InFlightHandle(u32);

/// A set of remote ranges of one peer. Ranges may overlap each other.
///
/// Only addresses are compared: keys of one peer name regions of one address space, so that equal addresses are
/// equal bytes whatever the key.
#[derive(Debug, Default)]
pub struct InFlight {
    spans: Vec<Span>,
    free: Vec<u32>,
}

impl InFlight {
    /// An empty set.
    pub fn new() -> InFlight {
        InFlight::default()
    }

    /// An empty set that holds `ranges` ranges without allocating.
    pub fn with_capacity(ranges: usize) -> InFlight {
        InFlight { spans: Vec::with_capacity(ranges), free: Vec::with_capacity(ranges) }
    }

    /// Adds a range.
    pub fn insert(&mut self, remote: RemoteAddr, len: u64) -> InFlightHandle {
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

    /// Removes a range that was added to this set.
    pub fn remove(&mut self, handle: InFlightHandle) {
        self.spans[handle.0 as usize] = Span::NOTHING;
        self.free.push(handle.0);
        if self.free.len() == self.spans.len() {
            self.spans.clear();
            self.free.clear();
        }
    }

    /// True if any byte of the range belongs to a range of the set. A range of no bytes overlaps nothing.
    pub fn overlaps(&self, remote: RemoteAddr, len: u64) -> bool {
        let span = Span::new(remote, len);
        self.spans.iter().any(|other| other.overlaps(span))
    }

    /// Number of ranges, those of no bytes included.
    pub fn len(&self) -> usize {
        self.spans.len() - self.free.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
    fn edges() {
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
    fn end_of_the_address_space() {
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
        let mut set = InFlight::with_capacity(4);
        let capacity = set.spans.capacity();
        for round in 0..100u64 {
            let handles: Vec<_> = (0..4).map(|i| set.insert(at(round + 100 * i), 10)).collect();
            for handle in handles {
                set.remove(handle);
            }
        }
        assert_eq!(set.spans.capacity(), capacity);
        assert!(set.is_empty());
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
        fn behaves_as_a_list_of_ranges(actions in prop::collection::vec(action(), 0..200)) {
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
