//! Which addresses are paged: regions, and the parts of them that the program has not unmapped.
//!
//! Invariant: the parts of a region are disjoint, ascending, not empty, and lie in the region. A
//! region without parts does not exist.
//!
//! # Concurrency
//! Plain values. The state has a lock around them.

use std::{collections::BTreeMap, ops::Range};

/// Regions by their first address. `M` is the memory of a region.
#[derive(Debug)]
pub(crate) struct Regions<M>(BTreeMap<usize, Region<M>>);

#[derive(Debug)]
struct Region<M> {
    memory: M,
    end: usize,
    parts: Vec<Range<usize>>,
}

/// A piece of a range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The range lies in the region with this first address.
    Paged(usize, Range<usize>),
    /// The program has unmapped the range, which is a part of a region that has others. Its
    /// addresses are reserved until the whole region is unmapped.
    Gone(Range<usize>),
    /// The range lies in no region.
    Other(Range<usize>),
}

impl<M> Regions<M> {
    pub(crate) const fn new() -> Regions<M> {
        Regions(BTreeMap::new())
    }

    /// Returns the number of regions.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn insert(&mut self, range: Range<usize>, memory: M) {
        let region = Region { memory, end: range.end, parts: vec![range.clone()] };
        self.0.insert(range.start, region);
    }

    /// Returns the length of the region that begins at an address, if all of it is mapped.
    pub(crate) fn whole(&self, start: usize) -> Option<usize> {
        let region = self.0.get(&start)?;
        match &region.parts[..] {
            [part] if *part == (start..region.end) => Some(part.len()),
            _ => None,
        }
    }

    /// Returns the memory of a region.
    pub(crate) fn memory(&mut self, start: usize) -> Option<&mut M> {
        self.0.get_mut(&start).map(|region| &mut region.memory)
    }

    /// Removes a region.
    pub(crate) fn remove(&mut self, start: usize) -> Option<M> {
        self.0.remove(&start).map(|region| region.memory)
    }

    /// Divides a range into pieces, in ascending order.
    pub(crate) fn pieces(&self, range: Range<usize>) -> Vec<Piece> {
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let mut pieces = Vec::new();
        let mut at = range.start;
        for (start, region) in self.0.range(first..range.end.max(first)) {
            let whole = at.max(*start)..range.end.min(region.end);
            if whole.is_empty() {
                continue;
            }
            if at < whole.start {
                pieces.push(Piece::Other(at..whole.start));
            }
            at = whole.start;
            for part in &region.parts {
                let common = part.start.max(at)..part.end.min(whole.end);
                if common.is_empty() {
                    continue;
                }
                if at < common.start {
                    pieces.push(Piece::Gone(at..common.start));
                }
                at = common.end;
                pieces.push(Piece::Paged(*start, common));
            }
            if at < whole.end {
                pieces.push(Piece::Gone(at..whole.end));
                at = whole.end;
            }
        }
        if at < range.end {
            pieces.push(Piece::Other(at..range.end));
        }
        pieces
    }

    /// Returns true if a range has addresses of a region.
    pub(crate) fn touches(&self, range: Range<usize>) -> bool {
        self.pieces(range).iter().any(|piece| !matches!(piece, Piece::Other(_)))
    }

    /// Unmaps a part of a region. Returns the memory if nothing is left of the region.
    pub(crate) fn unmap(&mut self, start: usize, range: Range<usize>) -> Option<M> {
        let region = self.0.get_mut(&start)?;
        let rest = |part: &Range<usize>| {
            let before = part.start..part.end.min(range.start);
            let behind = part.start.max(range.end)..part.end;
            [before, behind]
        };
        region.parts = region.parts.iter().flat_map(rest).filter(|part| !part.is_empty()).collect();
        if region.parts.is_empty() { self.remove(start) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GONE: usize = usize::MAX;

    /// Returns for each address the region that has it, or [`GONE`], as `pieces` says.
    fn map(regions: &Regions<usize>, len: usize) -> Vec<Option<usize>> {
        let mut map = vec![None; len];
        for piece in regions.pieces(0..len) {
            match piece {
                Piece::Paged(start, range) => map[range].fill(Some(start)),
                Piece::Gone(range) => map[range].fill(Some(GONE)),
                Piece::Other(_) => {}
            }
        }
        map
    }

    proptest! {
        #[test]
        fn pieces_follow_what_is_mapped(
            inserts in proptest::collection::vec((0..40_usize, 1..10_usize), 0..6),
            unmaps in proptest::collection::vec((0..50_usize, 1..12_usize), 0..12),
        ) {
            let mut regions = Regions::new();
            let mut expected: Vec<Option<usize>> = vec![None; 50];
            let mut ends = BTreeMap::new();
            for (start, len) in inserts {
                if expected[start..start + len].iter().all(Option::is_none) {
                    regions.insert(start..start + len, start);
                    expected[start..start + len].fill(Some(start));
                    ends.insert(start, start + len);
                }
            }
            for (start, len) in unmaps {
                let range = start..(start + len).min(50);
                for piece in regions.pieces(range.clone()) {
                    if let Piece::Paged(region, part) = piece {
                        let gone = regions.unmap(region, part.clone());
                        expected[part].fill(Some(GONE));
                        prop_assert_eq!(gone.is_some(), !expected.contains(&Some(region)));
                        if gone.is_some() {
                            expected[region..ends[&region]].fill(None);
                        }
                    }
                }
                prop_assert_eq!(regions.touches(range.clone()), expected[range].iter().any(Option::is_some));
                prop_assert_eq!(&map(&regions, 50), &expected);
            }
        }
    }

    #[test]
    fn only_an_intact_region_is_whole() {
        let mut regions = Regions::new();
        regions.insert(100..200, ());
        assert_eq!(regions.whole(100), Some(100));
        assert_eq!(regions.whole(101), None);
        assert!(regions.unmap(100, 150..160).is_none());
        assert_eq!(regions.whole(100), None);
        assert_eq!(
            regions.pieces(90..210),
            [
                Piece::Other(90..100),
                Piece::Paged(100, 100..150),
                Piece::Gone(150..160),
                Piece::Paged(100, 160..200),
                Piece::Other(200..210)
            ]
        );
        assert_eq!(regions.pieces(152..158), [Piece::Gone(152..158)]);
        assert!(regions.touches(152..158) && !regions.touches(200..210));
    }
}
