//! Records which pages of a file the kernel may have filled during a write with O_DIRECT.
//!
//! The kernel drops the pages of a range before it sends a write with O_DIRECT. A buffered read
//! during the write fills them again, perhaps with old bytes. An asynchronous write does not drop
//! them a second time. So a buffered read adds its range here before it reads, and a write takes
//! its range out after its bytes are in place. If the write takes out a page, the adapter drops
//! the pages of the range before it answers the write.
//!
//! No I/O, no locks, no clock. The lock of `Handles` guards this.

use smallvec::SmallVec;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Maximum number of ranges. Beyond it they become one range that covers all.
const MAX_RANGES: usize = 32;

/// Byte ranges, each with its end: whole pages, sorted and disjoint.
#[derive(Debug, Default)]
pub(super) struct PageRanges(SmallVec<[(u64, u64); 2]>);

/// Returns the pages that a range of bytes touches.
fn pages((from, len): (u64, u64)) -> (u64, u64) {
    let end = from.saturating_add(len);
    (from - from % PAGE, end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX))
}

impl PageRanges {
    /// Adds the pages of a range, given as its first byte and its length.
    pub(super) fn add(&mut self, range: (u64, u64)) {
        if range.1 == 0 {
            return;
        }
        let (mut from, mut end) = pages(range);
        self.0.retain(|&mut (other_from, other_end)| {
            let touches = other_from <= end && from <= other_end;
            if touches {
                (from, end) = (from.min(other_from), end.max(other_end));
            }
            !touches
        });
        if self.0.len() == MAX_RANGES {
            from = self.0.iter().map(|range| range.0).fold(from, u64::min);
            end = self.0.iter().map(|range| range.1).fold(end, u64::max);
            self.0.clear();
        }
        let at = self.0.partition_point(|other| other.0 < from);
        self.0.insert(at, (from, end));
    }

    /// Removes the pages of a range. Returns true if it has removed any.
    pub(super) fn take(&mut self, range: (u64, u64)) -> bool {
        if range.1 == 0 {
            return false;
        }
        let (from, end) = pages(range);
        let mut rest = SmallVec::<[(u64, u64); 2]>::new();
        let mut found = false;
        for &(other_from, other_end) in &self.0 {
            if other_end <= from || end <= other_from {
                rest.push((other_from, other_end));
                continue;
            }
            found = true;
            if other_from < from {
                rest.push((other_from, from));
            }
            if end < other_end {
                rest.push((end, other_end));
            }
        }
        if found {
            self.0 = rest;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn touched((from, len): (u64, u64)) -> BTreeSet<u64> {
        if len == 0 { BTreeSet::new() } else { (from / PAGE..=(from + len - 1) / PAGE).collect() }
    }

    proptest! {
        /// Compares with a set of page numbers. After ranges were joined there may be more pages
        /// than in the set, never fewer.
        #[test]
        fn no_page_is_forgotten(
            steps in proptest::collection::vec((any::<bool>(), 0..200 * PAGE, 0..8 * PAGE), 1..200),
        ) {
            let (mut ranges, mut set, mut joined) = (PageRanges::default(), BTreeSet::new(), false);
            for (adds, from, len) in steps {
                let pages = touched((from, len));
                if adds {
                    joined |= ranges.0.len() == MAX_RANGES;
                    ranges.add((from, len));
                    set.extend(pages);
                } else {
                    let there = pages.iter().any(|page| set.contains(page));
                    let found = ranges.take((from, len));
                    prop_assert!(found == there || joined && found);
                    set.retain(|page| !pages.contains(page));
                }
                prop_assert!(ranges.0.len() <= MAX_RANGES + 1);
                prop_assert!(ranges.0.windows(2).all(|two| two[0].1 < two[1].0 || two[0].1 == two[1].0 && !joined || two[0].1 <= two[1].0));
            }
        }
    }

    #[test]
    fn a_write_elsewhere_finds_nothing() {
        let mut ranges = PageRanges::default();
        ranges.add((0, 10));
        assert!(!ranges.take((PAGE, 3 * PAGE)), "other pages");
        assert!(ranges.take((PAGE - 1, 1)) && !ranges.take((0, PAGE)), "once");
        ranges.add((u64::MAX - 1, 5));
        assert!(ranges.take((u64::MAX - 7, 1)));
    }
}
