//! Checksums of the blocks of the arena: one little-endian word of 8 bytes per block, in block
//! order, in a region of their own.
//!
//! A word holds the check and the version of its block. A writer makes the version odd, changes the
//! block, and stores the new check with the next even version. A reader can therefore distinguish a
//! block that is being changed from a damaged block. If the same even version stands before and
//! after the read of the block, no writer changed the block during the read.
//!
//! The check is the CRC-32C of the block, xor the CRC-32C of a block of zeros. A block of zeros has
//! check 0, so zeroed memory is valid.

use crc32c::crc32c;

use crate::BLOCK;

/// Bytes of a word.
pub const LEN: u64 = 8;

/// CRC-32C of a block of zeros.
const ZEROS: u32 = 0x98f9_4189;

/// Returns the check of a block.
pub fn check(block: &[u8]) -> u32 {
    crc32c(block) ^ ZEROS
}

/// Returns the check of the data of a [`Request::Write`](crate::Request::Write), of any length.
pub fn check_data(data: &[u8]) -> u32 {
    crc32c(data)
}

/// Returns the offset, in the region of words, of the word of the block at arena offset `arena`.
pub const fn place(arena: u64) -> u64 {
    arena / BLOCK * LEN
}

/// Returns the length of the region of words for an arena of `arena` bytes.
pub const fn region_len(arena: u64) -> u64 {
    arena.div_ceil(BLOCK) * LEN
}

/// The check (lower half) and the version (upper half) of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// Returns the word with this check and version.
    pub const fn new(check: u32, version: u32) -> Word {
        Word(check as u64 | (version as u64) << 32)
    }

    /// Returns the check of the block.
    pub const fn check(self) -> u32 {
        self.0 as u32
    }

    /// Returns the version, which each change of the block raises by two.
    pub const fn version(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns true while a writer changes the block. The check is then meaningless.
    pub const fn is_open(self) -> bool {
        self.version() % 2 == 1
    }

    /// Returns the word to store before a change of the block.
    #[must_use]
    pub const fn opened(self) -> Word {
        Word::new(self.check(), self.version() | 1)
    }

    /// Returns the word to store after a change, for a block with this check.
    #[must_use]
    pub const fn closed(self, check: u32) -> Word {
        Word::new(check, (self.version() | 1).wrapping_add(1))
    }

    /// Returns true if the word is not open and its check matches `block`.
    pub fn fits(self, block: &[u8]) -> bool {
        !self.is_open() && self.check() == check(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_memory_is_valid() {
        assert_eq!(check(&[0; BLOCK as usize]), 0);
        assert!(Word(0).fits(&[0; BLOCK as usize]));
    }

    #[test]
    fn a_flipped_bit_is_detected() {
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
    fn versions_rise_and_wrap_around() {
        let word = Word::new(7, u32::MAX - 1);
        assert!(!word.is_open() && word.opened().is_open());
        assert_eq!(word.opened(), Word::new(7, u32::MAX));
        assert_eq!(word.opened().closed(9), Word::new(9, 0));
        // A word that a killed writer left open.
        assert_eq!(Word::new(1, 5).opened(), Word::new(1, 5));
        assert_eq!(Word::new(1, 5).closed(2), Word::new(2, 6));
    }

    #[test]
    fn words_are_in_block_order() {
        assert_eq!([0, 4096, 8191, 1 << 30].map(place), [0, 8, 8, 2 << 20]);
        assert_eq!([0, 1, 4096, 4097].map(region_len), [0, 8, 8, 16]);
    }
}
