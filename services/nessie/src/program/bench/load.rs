//! The load of a client: which keys, how many GETs, and how many operations a second.

use std::{
    error::Error,
    hint::black_box,
    time::{Duration, Instant},
};

use fastrand::Rng;
use nessie::{Node, ServerDriven};

/// A client-driven or server-driven store.
pub(crate) trait Store {
    fn get(&self, key: &[u8]) -> Result<(), Box<dyn Error>>;
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Box<dyn Error>>;
}

impl Store for Node {
    fn get(&self, key: &[u8]) -> Result<(), Box<dyn Error>> {
        black_box(Node::get(self, key)?.ok_or("a key without a value")?);
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Box<dyn Error>> {
        Ok(Node::put(self, key, value)?)
    }
}

impl Store for ServerDriven {
    fn get(&self, key: &[u8]) -> Result<(), Box<dyn Error>> {
        black_box(ServerDriven::get(self, key)?.ok_or("a key without a value")?);
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Box<dyn Error>> {
        Ok(ServerDriven::put(self, key, value)?)
    }
}

pub(crate) fn key(number: u32) -> [u8; 8] {
    u64::from(number).to_le_bytes()
}

/// Stores all keys of a range.
pub(crate) fn fill(
    store: &dyn Store,
    keys: std::ops::Range<u32>,
    value: &[u8],
) -> Result<(), Box<dyn Error>> {
    keys.into_iter().try_for_each(|number| store.put(&key(number), value))
}

/// How keys are chosen.
pub(crate) enum Keys {
    Uniform(u32),
    /// A share of the accesses goes to the first keys of a range.
    Local {
        all: u32,
        own: std::ops::Range<u32>,
        percent: u32,
    },
    /// The sums of the probabilities, by key.
    Zipf(Vec<f64>),
}

impl Keys {
    /// Returns keys by rank. The probability of the key of rank N is proportional to `1 /
    /// N^exponent`.
    pub(crate) fn zipf(keys: u32, exponent: f64) -> Keys {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += f64::from(rank).powf(-exponent);
                sum
            })
            .collect();
        Keys::Zipf(sums.into_iter().map(|part| part / sum).collect())
    }

    fn pick(&self, rng: &mut Rng) -> u32 {
        match self {
            Keys::Uniform(all) => rng.u32(..all),
            Keys::Local { own, percent, .. } if rng.u32(..100) < *percent => rng.u32(own.clone()),
            Keys::Local { all, .. } => rng.u32(..all),
            Keys::Zipf(sums) => {
                let place = rng.f64();
                sums.partition_point(|sum| *sum < place).min(sums.len() - 1) as u32
            }
        }
    }
}

/// A load for one client thread.
pub(crate) struct Load {
    pub(crate) keys: Keys,
    /// GETs in a thousand operations; the others are PUTs.
    pub(crate) gets: u32,
    pub(crate) value: Vec<u8>,
    /// Rounds of computation between two operations.
    pub(crate) compute: u32,
}

impl Load {
    /// Runs for a time. Returns the operations per second.
    pub(crate) fn run(&self, store: &dyn Store, time: Duration, seed: u64) -> Result<f64, Box<dyn Error>> {
        let mut rng = Rng::with_seed(seed);
        let begun = Instant::now();
        let mut operations = 0u64;
        while begun.elapsed() < time {
            for _ in 0..16 {
                let number = self.keys.pick(&mut rng);
                if rng.u32(..1000) < self.gets {
                    store.get(&key(number))?;
                } else {
                    store.put(&key(number), &self.value)?;
                }
                let mut state = u64::from(number);
                for _ in 0..self.compute {
                    state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                }
                operations += 1;
            }
        }
        Ok(operations as f64 / begun.elapsed().as_secs_f64())
    }

    /// Runs on several stores in turn, so that a change of the machine's load concerns all of them.
    /// Returns the median rate of each.
    pub(crate) fn compare<const N: usize>(
        &self,
        stores: [&dyn Store; N],
        time: Duration,
    ) -> Result<[f64; N], Box<dyn Error>> {
        const ROUNDS: u32 = 5;
        let mut rates = [(); N].map(|()| Vec::new());
        for round in 0..ROUNDS {
            for (store, rates) in stores.iter().zip(&mut rates) {
                rates.push(self.run(*store, time / ROUNDS, round.into())?);
            }
        }
        Ok(rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        }))
    }
}
