//! A set of free ranges, indexed by position and by length.
//!
//! The index by position coalesces neighbours and continues a file at its end; the index by length
//! finds the best fit. No I/O, no locks, no clock.
//!
//! # Concurrency
//! None; the caller holds a lock.

use std::collections::{BTreeMap, BTreeSet};

use rfs_proto::BLOCK;
use seeded_faults::seeded;

use super::range::Range;

/// Free ranges. They do not touch each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeMap {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    total: u64,
}

impl FreeMap {
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the parts of a range that are not in the set, in order.
    pub(crate) fn gaps(&self, range: Range) -> Vec<Range> {
        let before = self.by_start.range(..range.start).next_back();
        let within = self.by_start.range(range.start..range.end());
        let mut at = range.start;
        let mut gaps = Vec::new();
        for (&start, &len) in before.into_iter().chain(within).chain([(&range.end(), &0)]) {
            if start > at {
                gaps.push(Range { start: at, len: start - at });
            }
            at = at.max(start + len);
        }
        gaps
    }

    #[cfg(test)]
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.by_start.iter().map(|(&start, &len)| Range { start, len })
    }

    /// Adds a range that is not in the set, and merges it with its neighbours.
    pub(crate) fn insert(&mut self, range: Range) {
        if range.len == 0 {
            return;
        }
        self.total += range.len;
        let mut joined = range;
        if let Some((&start, &len)) = self.by_start.range(..range.start).next_back() {
            debug_assert!(start + len <= range.start, "freed twice: {range:?}");
            if start + len == range.start {
                self.forget(start, len);
                joined = Range { start, len: len + joined.len };
            }
        }
        if let Some((&start, &len)) = self.by_start.range(range.start..).next() {
            debug_assert!(range.end() <= start, "freed twice: {range:?}");
            if start == range.end() {
                self.forget(start, len);
                joined.len += len;
            }
        }
        self.remember(joined);
    }

    /// Takes up to `len` bytes that begin at `start`.
    pub(crate) fn take_at(&mut self, start: u64, len: u64) -> Option<Range> {
        let (&free_start, &free_len) = self.by_start.range(..=start).next_back()?;
        let free_end = free_start + free_len;
        if free_end <= start || len == 0 {
            return None;
        }
        let taken = Range { start, len: len.min(free_end - start) };
        self.forget(free_start, free_len);
        self.remember(Range { start: free_start, len: start - free_start });
        let shared = seeded!(BlockShared, taken.len.min(BLOCK), 0);
        let rest = taken.end() - shared;
        self.remember(Range { start: rest, len: free_end - rest });
        self.total -= taken.len - shared;
        Some(taken)
    }

    /// Takes one range of up to `want` bytes: from the shortest free range that has them all, else
    /// from the longest. Among equal lengths, the lowest address wins.
    pub(crate) fn take_best(&mut self, want: u64) -> Option<Range> {
        let fit = self.by_len.range((want, 0)..).next().copied();
        let (len, start) = match fit {
            Some(found) => found,
            None => {
                let &(longest, _) = self.by_len.last()?;
                *self.by_len.range((longest, 0)..).next()?
            }
        };
        self.take_at(start, want.min(len))
    }

    /// Takes `bytes`, or all if there are fewer, from the end down. Returns the ranges, the highest
    /// first.
    pub(crate) fn take_highest(&mut self, bytes: u64) -> Vec<Range> {
        let (mut left, mut taken) = (bytes, Vec::new());
        while left > 0 {
            let Some((&start, &len)) = self.by_start.last_key_value() else { break };
            let part = len.min(left);
            self.forget(start, len);
            self.remember(Range { start, len: len - part });
            self.total -= part;
            left -= part;
            taken.push(Range { start: start + len - part, len: part });
        }
        taken
    }

    /// Returns the lowest ranges with `bytes` in all, or all ranges if there are fewer, in order.
    pub(crate) fn lowest(&self, bytes: u64) -> Vec<Range> {
        let mut left = bytes;
        let mut first = |(&start, &len): (&u64, &u64)| {
            let part = len.min(left);
            left -= part;
            (part > 0).then_some(Range { start, len: part })
        };
        self.by_start.iter().map_while(&mut first).collect()
    }

    /// Takes a range out. Its bytes that are not in the set stay out.
    pub(crate) fn remove(&mut self, range: Range) {
        let before = self.by_start.range(..range.start).next_back();
        let within = self.by_start.range(range.start..range.end());
        let touched: Vec<Range> =
            before.into_iter().chain(within).map(|(&start, &len)| Range { start, len }).collect();
        for old in touched.into_iter().filter(|old| old.end() > range.start) {
            self.forget(old.start, old.len);
            self.total -= old.len;
            let below = range.start.saturating_sub(old.start);
            let above = old.end().saturating_sub(range.end());
            for rest in [Range { start: old.start, len: below }, Range { start: range.end(), len: above }] {
                self.remember(rest);
                self.total += rest.len;
            }
        }
    }

    fn remember(&mut self, range: Range) {
        if range.len > 0 {
            self.by_start.insert(range.start, range.len);
            self.by_len.insert((range.len, range.start));
        }
    }

    fn forget(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, len: u64) -> Range {
        Range { start, len }
    }

    fn set(ranges: &[(u64, u64)]) -> FreeMap {
        let mut free = FreeMap::default();
        ranges.iter().for_each(|&(start, len)| free.insert(range(start, len)));
        free
    }

    fn all(free: &FreeMap) -> Vec<(u64, u64)> {
        assert_eq!(free.by_len.len(), free.by_start.len());
        assert_eq!(free.ranges().map(|r| r.len).sum::<u64>(), free.total());
        free.ranges().map(|r| (r.start, r.len)).collect()
    }

    #[test]
    fn joins_on_both_sides() {
        assert_eq!(all(&set(&[(0, 4), (8, 4), (4, 4)])), [(0, 12)]);
        assert_eq!(all(&set(&[(8, 4), (0, 4)])), [(0, 4), (8, 4)]);
        assert_eq!(all(&set(&[(0, 0)])), []);
    }

    #[test]
    fn takes_at_a_place() {
        let mut free = set(&[(10, 10)]);
        assert_eq!(free.take_at(9, 1), None);
        assert_eq!(free.take_at(20, 1), None);
        assert_eq!(free.take_at(12, 0), None);
        assert_eq!(free.take_at(12, 3), Some(range(12, 3)));
        assert_eq!(all(&free), [(10, 2), (15, 5)]);
        assert_eq!(free.take_at(15, 100), Some(range(15, 5)));
        assert_eq!(all(&free), [(10, 2)]);
    }

    #[test]
    fn takes_from_the_end_and_names_the_lowest() {
        let mut free = set(&[(0, 8), (100, 4), (200, 4)]);
        assert_eq!(free.take_highest(6), [range(200, 4), range(102, 2)]);
        assert_eq!(all(&free), [(0, 8), (100, 2)]);
        assert_eq!(free.lowest(9), [range(0, 8), range(100, 1)]);
        assert_eq!(free.lowest(8), [range(0, 8)]);
        assert_eq!((free.lowest(0), free.lowest(99).len()), (vec![], 2));
        assert_eq!(free.take_highest(99), [range(100, 2), range(0, 8)]);
        assert_eq!((all(&free), free.take_highest(1)), (vec![], vec![]));
    }

    #[test]
    fn a_range_is_taken_out() {
        let removed = |start, len| {
            let mut free = set(&[(10, 10), (30, 5)]);
            free.remove(range(start, len));
            all(&free)
        };
        assert_eq!(removed(12, 3), [(10, 2), (15, 5), (30, 5)]);
        assert_eq!(removed(10, 10), [(30, 5)]);
        assert_eq!(removed(5, 28), [(33, 2)]);
        assert_eq!(removed(20, 10), [(10, 10), (30, 5)]);
        assert_eq!(removed(0, 99), []);
    }

    #[test]
    fn gaps_are_the_complement_of_the_set() {
        let free = set(&[(10, 10), (30, 5)]);
        let gaps = |start, end: u64| -> Vec<(u64, u64)> {
            free.gaps(range(start, end - start)).iter().map(|gap| (gap.start, gap.end())).collect()
        };
        assert_eq!(gaps(0, 40), [(0, 10), (20, 30), (35, 40)]);
        assert_eq!(gaps(5, 10), [(5, 10)]);
        assert_eq!(gaps(10, 20), []);
        assert_eq!(gaps(15, 32), [(20, 30)]);
        assert_eq!(gaps(15, 17), []);
        assert_eq!(gaps(20, 30), [(20, 30)]);
        assert_eq!(FreeMap::default().gaps(range(3, 4)), [range(3, 4)]);
    }

    #[test]
    fn takes_the_best_fit_else_the_longest() {
        let mut free = set(&[(0, 8), (100, 4), (200, 4), (300, 8)]);
        assert_eq!(free.take_best(3), Some(range(100, 3)));
        assert_eq!(free.take_best(4), Some(range(200, 4)));
        assert_eq!(free.take_best(50), Some(range(0, 8)));
        assert_eq!(free.take_best(50), Some(range(300, 8)));
        assert_eq!(all(&free), [(103, 1)]);
        assert_eq!(set(&[]).take_best(1), None);
    }
}
