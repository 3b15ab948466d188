//! Learns the length of the first READ of an answer.
//!
//! A short READ costs one more for each longer answer, and a long one costs bytes with each answer.
//! The lengths of answers are counted in classes that double. After some answers the class with the
//! least cost becomes the length, and the counts are halved, so that old answers are forgotten.
//!
//! # Concurrency
//! Shared by threads without a lock; lost counts change little. No clock.

use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Smallest class in bytes, with framing.
const SMALLEST: usize = 64;
/// Number of classes: the largest is longer than any answer.
const CLASSES: usize = 12;
/// Answers between two decisions.
const PERIOD: u32 = 128;
/// Bytes that cost as much as one more READ. On the modelled card a READ takes the host's card as
/// long as 445 bytes, and the client as long as 10,000.
const READ_BYTES: u64 = 2048;

#[derive(Debug)]
pub(crate) struct FetchSize {
    bytes: AtomicUsize,
    /// The length does not change.
    is_fixed: bool,
    counts: [AtomicU32; CLASSES],
    answers: AtomicU32,
}

impl FetchSize {
    /// Starts with READs of `bytes`, and keeps them if `is_fixed`.
    pub(crate) fn new(bytes: usize, is_fixed: bool) -> FetchSize {
        let counts = std::array::from_fn(|_| AtomicU32::new(0));
        FetchSize { bytes: AtomicUsize::new(bytes), is_fixed, counts, answers: AtomicU32::new(0) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Records an answer that takes `whole` bytes with its framing. `limit` is the longest READ.
    pub(super) fn record(&self, whole: usize, limit: usize) {
        if self.is_fixed {
            return;
        }
        let count = &self.counts[class(whole)];
        count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        let answers = self.answers.load(Ordering::Relaxed) + 1;
        if answers < PERIOD {
            self.answers.store(answers, Ordering::Relaxed);
            return;
        }
        self.answers.store(0, Ordering::Relaxed);
        let counts = self.counts.each_ref().map(|count| u64::from(count.load(Ordering::Relaxed)));
        self.bytes.store((SMALLEST << best(&counts)).min(limit), Ordering::Relaxed);
        self.counts.iter().zip(counts).for_each(|(count, found)| {
            count.store((found / 2) as u32, Ordering::Relaxed);
        });
    }
}

/// Returns the class of an answer.
fn class(whole: usize) -> usize {
    let classes = whole.div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize;
    classes.min(CLASSES - 1)
}

/// Returns the class with the least cost: its bytes for each answer, and a READ for each longer
/// answer.
fn best(counts: &[u64; CLASSES]) -> usize {
    let all: u64 = counts.iter().sum();
    let (mut longer, mut best) = (all, (0, u64::MAX));
    for (class, count) in counts.iter().enumerate() {
        longer -= count;
        let cost = all * (SMALLEST << class) as u64 + longer * READ_BYTES;
        if cost < best.1 {
            best = (class, cost);
        }
    }
    best.0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 65_560;

    fn after(lengths: impl IntoIterator<Item = usize>) -> usize {
        let size = FetchSize::new(1024, false);
        lengths.into_iter().for_each(|whole| size.record(whole, LIMIT));
        size.bytes()
    }

    #[test]
    fn equal_answers_are_fetched_at_once_and_not_much_more() {
        for (whole, bytes) in [(24, 64), (64, 64), (65, 128), (1000, 1024), (1025, 2048)] {
            assert_eq!(after(std::iter::repeat_n(whole, 2000)), bytes, "{whole}");
        }
        // More bytes than one more READ is worth.
        assert_eq!(after(std::iter::repeat_n(60_000, 2000)), 64);
    }

    #[test]
    fn rare_long_answers_do_not_lengthen_the_read_of_the_others() {
        let mixed = |every: usize| after((0..5000).map(move |i| if i % every == 0 { 1000 } else { 64 }));
        assert_eq!((mixed(10), mixed(2)), (64, 1024));
    }

    #[test]
    fn a_fixed_length_and_one_without_answers_stay() {
        let size = FetchSize::new(100, true);
        (0..1000).for_each(|_| size.record(5000, LIMIT));
        assert_eq!((size.bytes(), after([])), (100, 1024));
    }

    proptest! {
        #[test]
        fn the_length_stays_within_bounds(lengths in prop::collection::vec(0..2 * LIMIT, 0..1000)) {
            let bytes = after(lengths);
            prop_assert!((SMALLEST..=LIMIT).contains(&bytes));
        }

        #[test]
        fn the_length_follows_the_answers_after_any_history(
            before in prop::collection::vec(0..LIMIT, 0..1000),
            whole in 24..2000_usize,
        ) {
            let bytes = after(before.into_iter().chain(std::iter::repeat_n(whole, 3000)));
            prop_assert!(bytes >= whole && bytes < SMALLEST + 2 * whole, "{} for {}", bytes, whole);
        }
    }
}
