//! Blocks of a heap. A slab of 1 MiB has blocks of one class.
//!
//! Invariant: a block is allocated, or in the list of free blocks of its class, or behind the last
//! used block of its slab.
//!
//! # Concurrency
//! Plain values. The module above has a lock around them.

use super::classes::{COUNT, Class};

/// Length of a slab in bytes.
const SLAB: usize = 1 << 20;
/// Blocks are at multiples of it.
const GRAIN: usize = 16;

/// The blocks of one class.
#[derive(Debug)]
struct Blocks {
    /// Free blocks, in units of [`GRAIN`].
    free: Vec<u32>,
    /// The part of the newest slab that was never used: first offset and end.
    fresh: (usize, usize),
}

/// The blocks of a heap, by their offsets.
#[derive(Debug)]
pub(super) struct Slabs {
    capacity: usize,
    /// The class of each slab.
    slabs: Vec<Class>,
    classes: [Blocks; COUNT],
}

impl Slabs {
    /// Makes the bookkeeping of a heap without memory.
    pub(super) const fn new() -> Slabs {
        const NONE: Blocks = Blocks { free: Vec::new(), fresh: (0, 0) };
        Slabs { capacity: 0, slabs: Vec::new(), classes: [NONE; COUNT] }
    }

    /// Gives the heap its memory. Offsets fit into 32 bits in units of [`GRAIN`].
    pub(super) fn begin(&mut self, capacity: usize) {
        self.capacity = capacity.min((u32::MAX as usize) * GRAIN);
    }

    /// Allocates a block. Returns its offset, and true if it was never used. `None` if the heap is
    /// full.
    pub(super) fn allocate(&mut self, class: Class) -> Option<(usize, bool)> {
        let blocks = &mut self.classes[class.number()];
        if let Some(free) = blocks.free.pop() {
            return Some((free as usize * GRAIN, false));
        }
        let (first, end) = blocks.fresh;
        if first + class.len() <= end {
            blocks.fresh.0 += class.len();
            return Some((first, true));
        }
        let slab = self.slabs.len() * SLAB;
        if slab + SLAB > self.capacity {
            return None;
        }
        self.slabs.push(class);
        blocks.fresh = (slab + class.len(), slab + SLAB);
        Some((slab, true))
    }

    /// Frees an allocated block.
    pub(super) fn free(&mut self, offset: usize) {
        let Some(class) = self.slabs.get(offset / SLAB) else { return };
        self.classes[class.number()].free.push((offset / GRAIN) as u32);
    }

    /// Returns the length of an allocated block.
    pub(super) fn len_at(&self, offset: usize) -> usize {
        self.slabs.get(offset / SLAB).map_or(0, |class| class.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_do_not_overlap(steps in proptest::collection::vec((0..4_u8, 0..300_000_usize, 0..13_u32), 1..400)) {
            let mut slabs = Slabs::new();
            slabs.begin(24 * SLAB);
            let mut live: BTreeMap<usize, usize> = BTreeMap::new();
            let mut ever = std::collections::BTreeSet::new();
            for (kind, size, alignment) in steps {
                let size = if kind == 0 { size } else { size % 2000 };
                if kind == 3 {
                    if let Some((offset, _)) = live.range(size..).next().map(|(a, b)| (*a, *b)) {
                        live.remove(&offset);
                        slabs.free(offset);
                    }
                    continue;
                }
                let Some(class) = Class::of(size, 1 << alignment) else { continue };
                let Some((offset, is_new)) = slabs.allocate(class) else { continue };
                let len = slabs.len_at(offset);
                prop_assert_eq!(len, class.len());
                prop_assert!(len >= size && offset + len <= 24 * SLAB && offset.is_multiple_of(1 << alignment));
                prop_assert_eq!(ever.insert(offset), is_new);
                if let Some((before, before_len)) = live.range(..=offset).next_back() {
                    prop_assert!(before + before_len <= offset, "{} at {}", before_len, before);
                }
                if let Some((after, _)) = live.range(offset..).next() {
                    prop_assert!(offset + len <= *after);
                }
                live.insert(offset, len);
            }
        }
    }

    #[test]
    fn a_full_heap_allocates_again_after_a_free() {
        let mut slabs = Slabs::new();
        let class = Class::of(1000, 1).expect("small");
        assert_eq!(slabs.allocate(class), None);
        slabs.begin(SLAB);
        let count = std::iter::from_fn(|| slabs.allocate(class)).count();
        assert_eq!(count, SLAB / 1024);
        assert_eq!(slabs.allocate(Class::of(16, 1).expect("small")), None);
        slabs.free(2048);
        assert_eq!(slabs.allocate(class), Some((2048, false)));
    }
}
