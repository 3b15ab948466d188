//! Size classes: a block has the smallest length of a class that the allocation fits into.
//!
//! There are four classes for each doubling, so a block is at most a quarter longer than needed,
//! from 64 bytes on.
//!
//! # Concurrency
//! Pure functions.

/// Longest block.
pub(crate) const MAX: usize = 256 << 10;
/// Blocks are at multiples of it.
const GRAIN: usize = 16;
/// Number of classes.
pub(super) const COUNT: usize = 4 + 12 * 4;

/// A class, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    /// Returns the class for an allocation; `None` if it is not small, or has an alignment beyond
    /// a page.
    pub(super) fn of(size: usize, alignment: usize) -> Option<Class> {
        if size > MAX || alignment > 4096 || !alignment.is_power_of_two() {
            return None;
        }
        let alignment = alignment.max(GRAIN);
        // A power of two is a multiple of all smaller ones.
        let size = if alignment > GRAIN { size.max(alignment).next_power_of_two() } else { size };
        let units = size.max(1).div_ceil(GRAIN);
        if units <= 4 {
            return Some(Class(units as u8 - 1));
        }
        // `units` is in (4 << step, 8 << step], and the classes there are `1 << step` apart.
        let step = (units - 1).ilog2() as usize - 2;
        let quarter = ((units - 1) >> step) - 4;
        Some(Class((4 + 4 * step + quarter) as u8))
    }

    /// Returns the class of a number below [`COUNT`].
    pub(super) fn number(self) -> usize {
        self.0.into()
    }

    /// Returns the length of the blocks in bytes.
    pub(super) fn len(self) -> usize {
        let number = self.number();
        if number < 4 {
            return (number + 1) * GRAIN;
        }
        let (step, quarter) = ((number - 4) / 4, (number - 4) % 4);
        ((5 + quarter) << step) * GRAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_long_enough_and_no_longer_than_needed() {
        for size in 0..=MAX {
            let class = Class::of(size, 1).expect("small");
            let len = class.len();
            assert!(class.number() < COUNT && len >= size && len.is_multiple_of(GRAIN), "{size}: {len}");
            assert!(size < 64 || len <= size + size / 4 + GRAIN, "{size}: {len}");
        }
        assert_eq!(Class::of(MAX, 16).map(Class::number), Some(COUNT - 1));
        assert_eq!(Class::of(MAX + 1, 1), None);
    }

    #[test]
    fn aligned_blocks_have_lengths_that_keep_the_alignment() {
        for alignment in [16, 32, 64, 256, 4096] {
            for size in [0, 1, 17, 100, 4095, 5000, 70_000] {
                let len = Class::of(size, alignment).expect("small").len();
                assert!(len >= size && len.is_multiple_of(alignment), "{size} at {alignment}: {len}");
            }
        }
        assert_eq!((Class::of(1, 8192), Class::of(1, 3)), (None, None));
    }
}
