//! Keys: their limits, and the hash that selects partition and bucket.
//!
//! Clients and servers compute the hash, so it is a part of the protocol: XXH3 with a seed that the
//! server chooses. The upper half of the hash selects the partition, the lower half the bucket.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Maximum length of a key, in bytes.
pub const MAX_KEY: usize = 250;

/// A key whose length no store accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key of {0} bytes: choose 1 to {MAX_KEY} bytes")]
pub struct KeyError(pub usize);

/// A key with its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    bytes: &'a [u8],
    hash: u64,
}

impl<'a> Key<'a> {
    /// Returns a key with its hash under the seed of a store.
    ///
    /// # Errors
    /// [`KeyError`] if the key is empty or longer than [`MAX_KEY`].
    pub fn new(bytes: &'a [u8], seed: u64) -> Result<Key<'a>, KeyError> {
        match bytes.len() {
            1..=MAX_KEY => Ok(Key { bytes, hash: xxh3_64_with_seed(bytes, seed) }),
            len => Err(KeyError(len)),
        }
    }

    /// Returns the bytes of the key.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the partition of the key, of `partitions`, which is at least 1.
    pub fn partition(&self, partitions: usize) -> usize {
        ((u128::from(self.hash >> 32) * partitions as u128) >> 32) as usize
    }

    /// Returns a key that a store has, without the upper half of its hash.
    pub(super) fn of_stored(bytes: &'a [u8], low_hash: u32) -> Key<'a> {
        Key { bytes, hash: low_hash.into() }
    }

    /// Returns the half of the hash that selects the bucket.
    pub(super) fn low_hash(&self) -> u32 {
        self.hash as u32
    }
}

/// Returns the bucket of a hash, of `buckets`.
pub(super) fn bucket(low_hash: u32, buckets: usize) -> usize {
    ((u64::from(low_hash) * buckets as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_1_to_250_bytes() {
        assert_eq!(Key::new(b"", 0), Err(KeyError(0)));
        assert!(Key::new(&[7; 250], 0).is_ok());
        let refused = Key::new(&[7; 251], 0).unwrap_err();
        assert_eq!(refused.to_string(), "a key of 251 bytes: choose 1 to 250 bytes");
    }

    /// Clients of other builds compute the same hash.
    #[test]
    fn the_hash_is_that_of_the_specification() {
        let hash = |bytes, seed| Key::new(bytes, seed).unwrap().hash;
        assert_eq!(hash(b"a", 0), 0xe6c6_32b6_1e96_4e1f);
        assert_eq!(hash(b"abc", 0), 0x78af_5f94_892f_3950);
        assert_ne!(hash(b"abc", 0), hash(b"abc", 1));
    }

    #[test]
    fn keys_spread_over_partitions_and_buckets() {
        let mut counts = [[0_u32; 4]; 4];
        for i in 0..40_000_u32 {
            let bytes = i.to_le_bytes();
            let key = Key::new(&bytes, 5).unwrap();
            counts[key.partition(4)][bucket(key.low_hash(), 4)] += 1;
        }
        assert!(counts.iter().flatten().all(|count| (2200..2800).contains(count)), "{counts:?}");
    }
}
