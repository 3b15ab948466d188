//! What decides by chance in tests: a seed, and numbers that follow from it. Pure, but for [`seeds`].

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// Numbers that follow from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// The next number, below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % limit
    }

    /// The next place among so many, of which there is one at least.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

/// The seeds of a test: eight that are always the same, unless `RDMABOX_FAULT_SEED=N` asks for one or
/// `RDMABOX_FAULT_SEEDS=COUNT` for so many that nobody has seen.
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
