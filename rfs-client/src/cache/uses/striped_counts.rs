//! Counters that many threads add to.
//!
//! # Concurrency
//! Any thread adds with relaxed atomics. Each thread has one of [`STRIPES`] copies of the counters,
//! so that threads do not write to one cache line. Any thread reads the sums.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Copies of the counters.
const STRIPES: usize = 16;

#[derive(Debug)]
#[repr(align(128))]
struct Stripe<const N: usize>([AtomicU64; N]);

/// `N` counters for many threads.
#[derive(Debug)]
pub struct StripedCounts<const N: usize>([Stripe<N>; STRIPES]);

/// Number of threads that have counted so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Stripe of the calling thread, from its first count on.
    static STRIPE: Cell<Option<usize>> = const { Cell::new(None) };
}

impl<const N: usize> Default for StripedCounts<N> {
    fn default() -> Self {
        StripedCounts(std::array::from_fn(|_| Stripe(std::array::from_fn(|_| AtomicU64::new(0)))))
    }
}

impl<const N: usize> StripedCounts<N> {
    /// Adds 1 to a counter.
    ///
    /// # Panics
    /// If `at` is not below `N`.
    pub fn count(&self, at: usize) {
        let stripe = STRIPE.get().unwrap_or_else(|| {
            let stripe = THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES;
            STRIPE.set(Some(stripe));
            stripe
        });
        let Stripe(counts) = &self.0[stripe];
        counts[at].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the value of a counter.
    ///
    /// # Panics
    /// If `at` is not below `N`.
    pub fn sum(&self, at: usize) -> u64 {
        self.0.iter().map(|Stripe(counts)| counts[at].load(Ordering::Relaxed)).sum()
    }
}
