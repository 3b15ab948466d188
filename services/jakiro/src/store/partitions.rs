//! The partitions of a server, with a lock for each, a seed and a clock.
//!
//! The thread that serves a partition takes its lock for each operation. No other thread takes it,
//! except for statistics and for connections of other protocols, so the lock is free as a rule.
//!
//! # Concurrency
//! Any thread may use it. Each partition has a leaf lock.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{
    counters::Counters,
    key::{Key, KeyError},
    memory::{Limits, MAX_VALUE, NEVER, SizeError},
    partition::Partition,
};

/// Options of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Memory of all partitions together, in bytes.
    pub memory: u64,
    /// Number of partitions, from 1 to 64.
    pub partitions: usize,
    /// Maximum length of a value in bytes, at most [`MAX_VALUE`].
    pub max_value: usize,
    /// Seed of the hash of keys. `None`: a random one, so that no client can choose keys of one
    /// bucket.
    pub seed: Option<u64>,
}

impl StoreOptions {
    /// Maximum number of partitions.
    pub const MAX_PARTITIONS: usize = 64;

    /// Returns options with this memory, one partition, and values of up to [`MAX_VALUE`].
    pub fn new(memory: u64) -> StoreOptions {
        StoreOptions { memory, partitions: 1, max_value: MAX_VALUE, seed: None }
    }

    /// Sets the number of partitions.
    #[must_use]
    pub fn partitions(self, partitions: usize) -> StoreOptions {
        StoreOptions { partitions, ..self }
    }

    /// Sets the maximum length of a value in bytes.
    #[must_use]
    pub fn max_value(self, max_value: usize) -> StoreOptions {
        StoreOptions { max_value, ..self }
    }
}

/// A store: partitions that several threads use.
#[derive(Debug)]
pub struct Store {
    partitions: Vec<Mutex<Partition>>,
    seed: u64,
    max_value: usize,
    began: Instant,
}

impl Store {
    /// Makes an empty store. Takes all of its memory.
    ///
    /// # Errors
    /// [`SizeError`] if the sizes do not fit, or if there is no such memory.
    pub fn new(options: &StoreOptions) -> Result<Store, SizeError> {
        let count = options.partitions;
        if !(1..=StoreOptions::MAX_PARTITIONS).contains(&count) {
            return Err(SizeError::Partitions(count));
        }
        let limits = Limits { memory: options.memory / count as u64, max_value: options.max_value };
        let make = |_| Partition::new(&limits).map(Mutex::new);
        let seed = options.seed.unwrap_or_else(random_seed);
        let partitions = (0..count).map(make).collect::<Result<_, _>>()?;
        Ok(Store { partitions, seed, max_value: options.max_value, began: Instant::now() })
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// Returns the seed of the hash of keys.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the maximum length of a value in bytes.
    pub fn max_value(&self) -> usize {
        self.max_value
    }

    /// Returns the time of the store's clock: milliseconds since its start, at least 1.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NEVER - 1) + 1
    }

    /// Returns the time at which an item with this time to live expires. `None`: it does not.
    pub fn expires(&self, time_to_live: Option<Duration>) -> u64 {
        let Some(time) = time_to_live else { return NEVER };
        self.now().saturating_add(u64::try_from(time.as_millis()).unwrap_or(NEVER))
    }

    /// Runs a function with the partition of a key, the key and the time. No other thread uses the
    /// partition meanwhile, so the function must not block.
    ///
    /// # Errors
    /// [`KeyError`] if the length of the key is out of its range.
    pub fn with_key<R>(
        &self,
        key: &[u8],
        run: impl FnOnce(&mut Partition, &Key<'_>, u64) -> R,
    ) -> Result<R, KeyError> {
        let key = Key::new(key, self.seed)?;
        let mut partition = self.partitions[key.partition(self.partitions.len())].lock();
        Ok(run(&mut partition, &key, self.now()))
    }

    /// Runs a function with partition `index` and the time, as [`with_key`](Self::with_key).
    ///
    /// # Panics
    /// If there are fewer partitions.
    pub fn with_partition<R>(&self, index: usize, run: impl FnOnce(&mut Partition, u64) -> R) -> R {
        let mut partition = self.partitions[index].lock();
        run(&mut partition, self.now())
    }

    /// Returns the sum of the counters of all partitions.
    pub fn counters(&self) -> Counters {
        self.partitions.iter().fold(Counters::default(), |mut sum, partition| {
            sum += partition.lock().counters();
            sum
        })
    }
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
