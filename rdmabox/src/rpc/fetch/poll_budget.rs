//! Learns how many polls to spend before giving up.
//!
//! A miss halves the limit, down to one poll. A hit after `n` polls raises it to `2 n`. A small
//! limit cannot observe later arrivals, so after every 15 misses one attempt probes with the
//! maximum.
//!
//! # Concurrency
//! Shared by threads without a lock; a lost update is learnt again. No clock.

use crate::sync::atomic::{AtomicU32, Ordering};

/// One of so many misses is a probe.
const PROBE_EVERY: u32 = 16;

#[derive(Debug)]
pub(super) struct PollBudget {
    max: u32,
    limit: AtomicU32,
    misses: AtomicU32,
}

impl PollBudget {
    /// Creates a budget of at most `max` polls, and at least one. It starts at the maximum.
    pub(super) fn new(max: u32) -> PollBudget {
        let max = max.max(1);
        PollBudget { max, limit: AtomicU32::new(max), misses: AtomicU32::new(0) }
    }

    /// Returns the number of polls for the next attempt.
    pub(super) fn limit(&self) -> u32 {
        let probe = self.misses.load(Ordering::Relaxed) % PROBE_EVERY == PROBE_EVERY - 1;
        if probe { self.max } else { self.limit.load(Ordering::Relaxed) }
    }

    /// Records a hit after `polls` unsuccessful polls.
    pub(super) fn record_hit(&self, polls: u32) {
        let wanted = polls.saturating_mul(2).min(self.max);
        if wanted > self.limit.load(Ordering::Relaxed) {
            self.limit.store(wanted, Ordering::Relaxed);
        }
    }

    /// Records an attempt without a hit.
    pub(super) fn record_miss(&self) {
        let before = self.misses.load(Ordering::Relaxed);
        self.misses.store(before.wrapping_add(1), Ordering::Relaxed);
        // A probe says nothing about smaller limits.
        if before % PROBE_EVERY != PROBE_EVERY - 1 {
            let halved = self.limit.load(Ordering::Relaxed) / 2;
            self.limit.store(halved.max(1), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEVER: u32 = u32::MAX;

    /// Makes an attempt that would hit after `after` unsuccessful polls. Returns the polls spent.
    fn attempt(budget: &PollBudget, after: u32) -> u32 {
        let limit = budget.limit();
        if after < limit {
            budget.record_hit(after);
            after
        } else {
            budget.record_miss();
            limit
        }
    }

    #[test]
    fn misses_halve_the_limit_and_every_16th_attempt_probes() {
        let budget = PollBudget::new(32);
        let polls: Vec<u32> = (0..33).map(|_| attempt(&budget, NEVER)).collect();
        assert_eq!(polls[..7], [32, 16, 8, 4, 2, 1, 1]);
        let long: Vec<usize> = (1..33).filter(|i| polls[*i] == 32).collect();
        assert_eq!(long, [15, 31]);
    }

    #[test]
    fn a_probe_that_hits_raises_the_limit() {
        let budget = PollBudget::new(32);
        (0..15).for_each(|_| {
            attempt(&budget, NEVER);
        });
        assert_eq!(attempt(&budget, 10), 10);
        // The limit is that of a probe again, until a probe misses.
        attempt(&budget, NEVER);
        assert_eq!(budget.limit(), 20);
    }

    proptest! {
        #[test]
        fn the_limit_stays_within_bounds(max in 0..1000u32, tries in prop::collection::vec(0..2000u32, 0..300)) {
            let budget = PollBudget::new(max);
            for after in tries {
                attempt(&budget, after);
                prop_assert!((1..=max.max(1)).contains(&budget.limit()));
            }
        }

        #[test]
        fn the_limit_adapts_to_hits_after_any_history(
            max in 1..1000u32,
            before in prop::collection::vec(0..2000u32, 0..300),
            after: u32,
        ) {
            let budget = PollBudget::new(max);
            for tried in before {
                attempt(&budget, tried);
            }
            let after = after % max;
            (0..=PROBE_EVERY).for_each(|_| {
                attempt(&budget, after);
            });
            for _ in 0..100 {
                prop_assert_eq!(attempt(&budget, after), after);
            }
        }

        #[test]
        fn few_polls_are_wasted_on_misses_after_any_history(
            max in 1..1000u32,
            before in prop::collection::vec(0..2000u32, 0..300),
        ) {
            let budget = PollBudget::new(max);
            for tried in before {
                attempt(&budget, tried);
            }
            (0..2 * PROBE_EVERY).for_each(|_| {
                attempt(&budget, NEVER);
            });
            let wasted: u32 = (0..10 * PROBE_EVERY).map(|_| attempt(&budget, NEVER)).sum();
            prop_assert_eq!(wasted, 10 * (max + PROBE_EVERY - 1));
        }
    }
}
