//! Checksums of the blocks of the arena: one little-endian word of 8 bytes for each, in the order of the blocks, in a region of their own.
//!
//! A word holds the check of its block and a version. Whoever changes a block makes the version odd first, then changes the bytes, then
//! says their check with the next even version. So whoever reads a block and its word tells one that is being changed from one that
//! is damaged: a block that has been read between two looks at its word, both of which found the same even version, was at rest.
//!
//! The check is the CRC-32C of the block, combined (xor) with that of a block of zeroes: memory that nobody has touched is in order.

use crc32c::crc32c;

use crate::BLOCK;

/// Bytes of a word.
pub const LEN: u64 = 8;

/// CRC-32C of a block of zeroes.
const ZEROES: u32 = 0x98f9_4189;

/// The check of a block.
pub fn check(block: &[u8]) -> u32 {
    crc32c(block) ^ ZEROES
}

/// The check of the data of a [`Request::Write`](crate::Request::Write), of whatever length.
pub fn check_data(data: &[u8]) -> u32 {
    crc32c(data)
}

/// Where in its region the word of a block is that begins at `arena`.
pub const fn place(arena: u64) -> u64 {
    arena / BLOCK * LEN
}

/// Bytes of the region of an arena of `arena` bytes.
pub const fn region_len(arena: u64) -> u64 {
    arena.div_ceil(BLOCK) * LEN
}

/// A word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// The word of a block.
    pub const fn new(check: u32, version: u32) -> Word {
        Word(check as u64 | (version as u64) << 32)
    }

    /// What the check of the block is.
    pub const fn check(self) -> u32 {
        self.0 as u32
    }

    /// Grows with each change.
    pub const fn version(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The block is being changed, and its check says nothing.
    pub const fn is_open(self) -> bool {
        self.version() % 2 == 1
    }

    /// While the block is changed.
    #[must_use]
    pub const fn opened(self) -> Word {
        Word::new(self.check(), self.version() | 1)
    }

    /// When it has been changed, and has this check.
    #[must_use]
    pub const fn closed(self, check: u32) -> Word {
        Word::new(check, (self.version() | 1).wrapping_add(1))
    }

    /// Whether these are the bytes of the block.
    pub fn fits(self, block: &[u8]) -> bool {
        !self.is_open() && self.check() == check(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_never_touched_is_in_order() {
        assert_eq!(check(&[0; BLOCK as usize]), 0);
        assert!(Word(0).fits(&[0; BLOCK as usize]));
    }

    #[test]
    fn one_bit_is_found() {
        let mut block = [0xa5; BLOCK as usize];
        let word = Word(0).opened().closed(check(&block));
        assert!(word.fits(&block));
        for bit in [0, 1, 4095, 8 * BLOCK as usize - 1] {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(!word.fits(&block), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn versions_go_up_and_around() {
        let word = Word::new(7, u32::MAX - 1);
        assert!(!word.is_open() && word.opened().is_open());
        assert_eq!(word.opened(), Word::new(7, u32::MAX));
        assert_eq!(word.opened().closed(9), Word::new(9, 0));
        // One that was left open is closed as any other.
        assert_eq!(Word::new(1, 5).opened(), Word::new(1, 5));
        assert_eq!(Word::new(1, 5).closed(2), Word::new(2, 6));
    }

    #[test]
    fn places() {
        assert_eq!([0, 4096, 8191, 1 << 30].map(place), [0, 8, 8, 2 << 20]);
        assert_eq!([0, 1, 4096, 4097].map(region_len), [0, 8, 8, 16]);
    }
}
