//! Queries for records that fill the pages. The most frequent records are spread over all pages.
//!
//! # Concurrency
//! Plain values.

use fastrand::Rng;

use crate::logic::PAGE;

/// Length of a record in bytes.
const RECORD: usize = 1000;
/// Exponent of the Zipf distribution.
const EXPONENT: f64 = 0.99;

/// A key-value load: records of 1000 bytes that a Zipf distribution chooses (RDMAbox, section
/// VI-A1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValueLoad {
    /// 5 % of the queries store a record, the others read one.
    Etc,
    /// 25 % of the queries store a record.
    Sys,
}

impl KeyValueLoad {
    /// Returns the percentage of queries that store a record.
    pub fn stores(self) -> u32 {
        match self {
            Self::Etc => 5,
            Self::Sys => 25,
        }
    }
}

/// One access of a query to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) page: usize,
    pub(super) store: bool,
}

/// Chooses the queries.
#[derive(Debug)]
pub(super) struct Queries {
    /// Percentage of stores.
    stores: u32,
    /// Records by rank, the most frequent one first.
    order: Vec<usize>,
    /// Sums of the weights up to each rank.
    sums: Vec<f64>,
    random: Rng,
}

impl Queries {
    pub(super) fn new(load: KeyValueLoad, pages: usize, seed: u64) -> Queries {
        let mut random = Rng::with_seed(seed);
        let mut order: Vec<usize> = (0..pages * PAGE / RECORD).collect();
        random.shuffle(&mut order);
        let weights = (1..=order.len()).map(|rank| (rank as f64).powf(-EXPONENT));
        let sums = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Queries { stores: load.stores(), sums: sums.collect(), order, random }
    }

    /// Returns the number of records.
    pub(super) fn records(&self) -> usize {
        self.order.len()
    }

    /// Adds the accesses of a query to `accesses`, the first one last.
    pub(super) fn next(&mut self, accesses: &mut Vec<Access>) {
        let at = self.random.f64() * self.sums.last().copied().unwrap_or(0.0);
        let rank = self.sums.partition_point(|sum| *sum <= at).min(self.order.len() - 1);
        let store = self.random.u32(0..100) < self.stores;
        let first = self.order[rank] * RECORD;
        let pages = first / PAGE..=(first + RECORD - 1) / PAGE;
        accesses.extend(pages.rev().map(|page| Access { page, store }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a wrong share of stores, a flat distribution, and records beyond the pages.
    #[test]
    fn few_records_get_most_queries_and_all_are_in_the_pages() {
        for load in [KeyValueLoad::Etc, KeyValueLoad::Sys] {
            let mut queries = Queries::new(load, 1000, 7);
            let (mut stores, mut counts) = (0, vec![0_u32; 1000]);
            for _ in 0..100_000 {
                let mut accesses = Vec::new();
                queries.next(&mut accesses);
                assert!(
                    (1..=2).contains(&accesses.len()) && accesses.is_sorted_by_key(|a| usize::MAX - a.page)
                );
                stores += u32::from(accesses[0].store);
                accesses.iter().for_each(|access| counts[access.page] += 1);
            }
            let percent = f64::from(stores) / 1000.0;
            assert!((percent - f64::from(load.stores())).abs() < 0.5, "{load:?}: {percent}");
            counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            let quarter: u32 = counts[..250].iter().sum();
            assert!(quarter > 55_000 && counts[999] > 0, "{quarter}");
        }
    }
}
