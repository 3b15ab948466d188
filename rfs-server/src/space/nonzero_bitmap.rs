//! Bitmap of the arena blocks that may hold bytes other than zero, one bit per block.
//!
//! The bitmap lies in the object. A free block without a bit is zero. A bit is set before its block
//! is handed out, and cleared after the block is zeroed. So a server that is killed at any moment
//! leaves no nonzero free block without a bit. A superfluous bit costs the zeroing of one block.
//!
//! # Concurrency
//! The caller holds the lock of the arena's allocator.

use std::sync::{Arc, atomic::Ordering};

use rdmabox::Memory;
use rfs_proto::BLOCK;

use super::alloc::range::Range;

/// One bit for each block of the arena: set if the block may not be zero.
#[derive(Debug)]
pub struct NonzeroBitmap {
    memory: Arc<Memory>,
    /// First byte of the bitmap in `memory`.
    offset: usize,
}

impl NonzeroBitmap {
    /// Returns the size in bytes, whole 64-bit words, of the bitmap of an arena of `len` bytes.
    pub fn len_for(len: u64) -> u64 {
        len.div_ceil(BLOCK).div_ceil(64) * 8
    }

    /// Returns the bitmap at `offset`, a multiple of 8, of `memory`.
    pub fn new(memory: Arc<Memory>, offset: usize) -> NonzeroBitmap {
        NonzeroBitmap { memory, offset }
    }

    /// Marks a range of whole blocks as possibly nonzero, or as zero.
    pub fn set(&self, range: Range, may_hold: bool) {
        let (mut block, end) = (range.start / BLOCK, range.end().div_ceil(BLOCK));
        while block < end {
            let in_word = block % 64;
            let count = (64 - in_word).min(end - block);
            let mask = u64::MAX >> (64 - count) << in_word;
            let word = self.memory.atomic_u64(self.offset + (block / 64 * 8) as usize);
            // The allocator's lock serializes writers. Release: the zeroes are stored before the
            // bit is cleared.
            let old = word.load(Ordering::Relaxed);
            word.store(if may_hold { old | mask } else { old & !mask }, Ordering::Release);
            block += count;
        }
    }

    /// Splits a range of whole blocks into runs of equal bits, in order; `true`: the run may hold
    /// bytes other than zero.
    pub fn pieces(&self, range: Range) -> Vec<(Range, bool)> {
        let mut pieces: Vec<(Range, bool)> = Vec::new();
        let (mut block, end) = (range.start / BLOCK, range.end().div_ceil(BLOCK));
        while block < end {
            let word = self.memory.load_u64(self.offset + (block / 64 * 8) as usize) >> (block % 64);
            let holds = word & 1 == 1;
            let same = if holds { word.trailing_ones() } else { word.trailing_zeros() };
            let count = u64::from(same).min(64 - block % 64).min(end - block);
            let start = block * BLOCK;
            let len = ((block + count) * BLOCK).min(range.end()) - start;
            match pieces.last_mut() {
                Some((last, held)) if *held == holds => last.len += len,
                _ => pieces.push((Range { start, len }, holds)),
            }
            block += count;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, len: u64) -> Range {
        Range { start: start * BLOCK, len: len * BLOCK }
    }

    proptest! {
        #[test]
        fn agrees_with_a_table(
            steps in proptest::collection::vec((0..200u64, 0..200u64, any::<bool>()), 0..30),
            (start, len) in (0..200u64, 0..200u64),
        ) {
            let memory = Arc::new(Memory::private(NonzeroBitmap::len_for(400 * BLOCK) as usize + 8).unwrap());
            let dirt = NonzeroBitmap::new(Arc::clone(&memory), 8);
            let mut table = [false; 400];
            for (start, len, holds) in steps {
                dirt.set(range(start, len), holds);
                table[start as usize..(start + len) as usize].fill(holds);
            }
            let pieces = dirt.pieces(range(start, len));
            prop_assert!(pieces.windows(2).all(|pair| pair[0].0.end() == pair[1].0.start && pair[0].1 != pair[1].1));
            let blocks: Vec<bool> = pieces.iter()
                .flat_map(|(range, holds)| std::iter::repeat_n(*holds, (range.len / BLOCK) as usize)).collect();
            prop_assert_eq!(&blocks[..], &table[start as usize..(start + len) as usize]);
            prop_assert_eq!(memory.load_u64(0), 0);
        }
    }
}
