//! Hash maps by numbers that the server assigns: inodes and sessions. Clients cannot choose
//! colliding numbers, so a multiplication suffices as hash.
//!
//! # Concurrency
//! Plain values.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A map by inode or session number.
pub type ByNumber<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// 2^64 divided by the golden ratio: consecutive numbers are spread far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a number so that all of its bits reach the upper half.
#[inline]
pub fn spread(number: u64) -> u64 {
    number.wrapping_mul(SPREAD)
}

/// Hashes one inode or session number.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = spread(self.0 ^ number);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The map takes its bucket index from the lower bits.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, hash::BuildHasher};

    use super::*;

    #[test]
    fn numbers_spread() {
        let hash = |number: u64| BuildHasherDefault::<NumberHasher>::default().hash_one(number);
        let stride = |step: u64| (0..4096u64).map(move |at| at * step);
        for step in [1, 2, 64, 128, 1000, 1 << 20] {
            let low: HashSet<u64> = stride(step).map(|number| hash(number) % 8192).collect();
            let high: HashSet<u64> = stride(step).map(|number| hash(number) >> 57).collect();
            assert!(low.len() > 2048, "{step}: {}", low.len());
            assert!(high.len() > 100, "{step}: {}", high.len());
        }
    }
}
