//! The requests of a thread: a sequence that a seed determines.
//!
//! # Concurrency
//! Plain values.

use fastrand::Rng;

use super::{Load, Popularity, zipf::Zipf};

/// Length of a key in bytes.
pub(crate) const KEY: usize = 16;

/// A request, as the number of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) is_get: bool,
    pub(crate) key: u64,
}

/// Makes the requests of a thread.
#[derive(Debug)]
pub(crate) struct Requests {
    rng: Rng,
    load: Load,
    zipf: Option<Zipf>,
}

impl Requests {
    pub(crate) fn new(load: Load, seed: u64) -> Requests {
        let zipf = (load.popularity == Popularity::Zipf).then(|| Zipf::new(load.keys));
        Requests { rng: Rng::with_seed(seed), load, zipf }
    }

    /// Returns the next request.
    pub(crate) fn next(&mut self) -> Request {
        let key = match &self.zipf {
            // Popular keys are spread over the partitions by the hash of the key.
            Some(zipf) => zipf.rank(self.rng.f64()),
            None => self.rng.u64(..self.load.keys),
        };
        Request { is_get: self.rng.u8(..100) < self.load.get_percent, key }
    }
}

/// Returns the bytes of a key: 16 hexadecimal digits that look random.
pub(crate) fn key(number: u64) -> [u8; KEY] {
    let mixed = mix(number);
    std::array::from_fn(|i| b"0123456789abcdef"[(mixed >> (4 * i)) as usize & 15])
}

/// Returns the length of the text of a key: exponential with the mean of the paper's texts.
pub(super) fn text_length(number: u64) -> usize {
    const MEAN: f64 = 43.0;
    let uniform = ((mix(number ^ 0x5bd1_e995) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    ((-uniform.ln() * (MEAN - 0.5)).ceil() as usize).clamp(1, 899)
}

/// Returns a number that is another one for each input (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::load::Lengths;

    #[test]
    fn keys_differ_and_texts_have_the_mean_of_the_paper() {
        let keys: HashSet<_> = (0..100_000).map(key).collect();
        assert_eq!(keys.len(), 100_000);
        let lengths: Vec<usize> = (0..200_000).map(text_length).collect();
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        assert!((42.0..44.0).contains(&mean), "{mean}");
        assert!(lengths.iter().filter(|len| **len > 512).count() < 20);
    }

    #[test]
    fn the_share_of_gets_is_that_of_the_load() {
        let load =
            Load { get_percent: 5, lengths: Lengths::Fixed(32), popularity: Popularity::Uniform, keys: 10 };
        let mut requests = Requests::new(load, 1);
        let gets = (0..100_000).filter(|_| requests.next().is_get).count();
        assert!((4500..5500).contains(&gets), "{gets}");
    }
}
