//! Seeded random decisions for tests.
//!
//! No I/O, no locks, no clock, except for [`seeds`], which reads the environment.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// Pseudo-random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Creates the sequence of `seed`. Equal seeds give equal sequences.
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// Returns the next number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % limit
    }

    /// Returns the next index into `len` elements; `len` must not be zero.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

/// Returns the seeds of a test: eight fixed seeds by default, one seed with
/// `RDMABOX_FAULT_SEED=N`, or `COUNT` fresh seeds with `RDMABOX_FAULT_SEEDS=COUNT`.
pub fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match (number("RDMABOX_FAULT_SEED"), number("RDMABOX_FAULT_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => {
            let first = RandomState::new().build_hasher().finish() >> 16;
            (first..first + count).collect()
        }
        (None, None) => (0..8).collect(),
    }
}
