//! The page table of a region: the states of its pages, and an index of the resident ones.
//!
//! Invariant: the index has exactly the pages whose state is resident.
//!
//! # Concurrency
//! Plain values.

use super::page::Page;

/// Page states of one region.
#[derive(Debug)]
pub(crate) struct Table {
    pages: Vec<Page>,
    /// One bit for each page: resident.
    index: Vec<u64>,
    resident: usize,
}

impl Table {
    /// Makes a table of pages that were never touched.
    pub(crate) fn new(pages: usize) -> Table {
        Table { pages: vec![Page::default(); pages], index: vec![0; pages.div_ceil(64)], resident: 0 }
    }

    /// Returns the number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns the number of resident pages.
    pub(crate) fn resident(&self) -> usize {
        self.resident
    }

    pub(crate) fn get(&self, page: usize) -> Page {
        self.pages[page]
    }

    /// Changes the state of a page, and keeps the index right.
    pub(crate) fn update<R>(&mut self, page: usize, change: impl FnOnce(&mut Page) -> R) -> R {
        let state = &mut self.pages[page];
        let before = state.is_resident();
        let result = change(state);
        if state.is_resident() != before {
            self.index[page / 64] ^= 1 << (page % 64);
            if before {
                self.resident -= 1;
            } else {
                self.resident += 1;
            }
        }
        result
    }

    /// Returns the first resident page at or after `from`.
    pub(crate) fn next_resident(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.index.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.index.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_index_follows_the_states(changes in proptest::collection::vec((0..200_usize, any::<bool>()), 0..300)) {
            let mut table = Table::new(200);
            let mut expected = BTreeSet::new();
            for (page, present) in changes {
                table.update(page, |state| {
                    if present && !state.is_resident() {
                        state.fill(false, true);
                    } else if !present {
                        state.discard();
                    }
                });
                if present { expected.insert(page); } else { expected.remove(&page); }
                prop_assert_eq!(table.resident(), expected.len());
            }
            for from in 0..=200 {
                prop_assert_eq!(table.next_resident(from), expected.range(from..).next().copied());
            }
        }
    }
}
