//! The sort of the same records in the memory of one process, for comparison.
//!
//! # Concurrency
//! Scoped threads, which share no bytes.

use std::time::{Duration, Instant};

use super::records::{self, Digest, Record};

/// Generates the records of `workers` workers, and sorts them with `threads` threads: each thread
/// sorts a key range. Returns the time of the sort, and the digest of the sorted records.
///
/// # Panics
/// If the result is not sorted.
pub fn sort_locally(workers: usize, records_per_worker: u64, threads: usize) -> (Duration, Digest) {
    let mut input: Vec<Vec<Record>> = Vec::new();
    for worker in 0..workers {
        let mut own = vec![[0; records::RECORD_BYTES]; records_per_worker as usize];
        records::generate(worker, &mut own);
        input.push(own);
    }
    let begun = Instant::now();
    let input = &input;
    let sorted: Vec<Vec<Record>> = std::thread::scope(|scope| {
        let sort_range = |range: usize| {
            let all = input.iter().flatten();
            let of_range = all.filter(|record| records::bucket_of(record, threads) == range);
            let mut own: Vec<Record> = of_range.copied().collect();
            records::sort(&mut own);
            own
        };
        let started: Vec<_> = (0..threads).map(|range| scope.spawn(move || sort_range(range))).collect();
        started.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let time = begun.elapsed();
    let mut digest = Digest::default();
    for part in &sorted {
        assert!(records::is_sorted(part), "the local sort is wrong");
        digest.add(part);
    }
    (time, digest)
}
