//! Sizes of a partition: how many blocks and buckets its memory has.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use super::blocks::{BLOCK, MAX_BLOCKS, blocks_of};
use crate::store::key::MAX_KEY;

/// Maximum length of a value in bytes, for any store.
pub const MAX_VALUE: usize = 1 << 20;

/// Bytes of the index for each block.
const BUCKET: u64 = size_of::<u32>() as u64;

/// The sizes of a store or of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory for items and their index, in bytes.
    pub memory: u64,
    /// Maximum length of a value in bytes, at most [`MAX_VALUE`].
    pub max_value: usize,
}

impl Limits {
    /// Returns limits with this memory, and values of up to [`MAX_VALUE`].
    pub fn new(memory: u64) -> Limits {
        Limits { memory, max_value: MAX_VALUE }
    }

    /// Returns the memory that a partition needs for values of this length. It has room for two of
    /// the longest items, because an append holds the old and the new item.
    pub fn least_memory(max_value: usize) -> u64 {
        2 * blocks_of(MAX_KEY + max_value) as u64 * (BLOCK as u64 + BUCKET)
    }

    /// Returns the number of blocks of a partition with this memory.
    ///
    /// # Errors
    /// [`SizeError`] if the sizes do not fit each other.
    pub(in crate::store) fn blocks(&self) -> Result<usize, SizeError> {
        if self.max_value > MAX_VALUE {
            return Err(SizeError::MaxValue(self.max_value));
        }
        let least = Limits::least_memory(self.max_value);
        if self.memory < least {
            return Err(SizeError::Memory { memory: self.memory, least, max_value: self.max_value });
        }
        let blocks = self.memory / (BLOCK as u64 + BUCKET);
        usize::try_from(blocks)
            .ok()
            .filter(|blocks| *blocks <= MAX_BLOCKS)
            .ok_or(SizeError::TooLarge(self.memory))
    }
}

/// Sizes that make no partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// The longest values would not fit.
    #[error(
        "a partition of {memory} bytes is too small for values of {max_value} bytes: give each partition at \
         least {least} bytes, or reduce the number of partitions"
    )]
    Memory {
        /// Memory of the partition, in bytes.
        memory: u64,
        /// The least memory, in bytes.
        least: u64,
        /// Maximum length of a value, in bytes.
        max_value: usize,
    },
    /// The limit for values is beyond that of the protocol.
    #[error("values of {0} bytes: the limit is {MAX_VALUE} bytes")]
    MaxValue(usize),
    /// The number of partitions is out of its range.
    #[error("{0} partitions: choose 1 to 64")]
    Partitions(usize),
    /// A partition addresses its blocks with 32 bits.
    #[error("a partition of {0} bytes is too large: use more partitions, of at most 512 GiB each")]
    TooLarge(u64),
    /// The operating system refused the memory.
    #[error("the operating system refused {0} bytes for a partition: give the store less memory")]
    Refused(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_fit_name_the_next_step() {
        let least = Limits::least_memory(1024);
        assert!(Limits { memory: least, max_value: 1024 }.blocks().is_ok());
        let refused = Limits { memory: least - 1, max_value: 1024 }.blocks().unwrap_err();
        assert!(refused.to_string().contains(&format!("at least {least} bytes")), "{refused}");
        let refused = Limits { memory: 1 << 30, max_value: MAX_VALUE + 1 }.blocks();
        assert_eq!(refused, Err(SizeError::MaxValue(MAX_VALUE + 1)));
        assert_eq!(Limits::new(u64::MAX).blocks(), Err(SizeError::TooLarge(u64::MAX)));
    }

    #[test]
    fn blocks_and_buckets_stay_within_the_memory() {
        for memory in [Limits::least_memory(MAX_VALUE), 10 << 20, (1 << 30) + 17] {
            let blocks = Limits::new(memory).blocks().unwrap() as u64;
            let used = blocks * (BLOCK as u64 + BUCKET);
            assert!(used <= memory && memory - used < BLOCK as u64 + BUCKET);
        }
    }
}
