//! How long to look for something before giving up, in looks: as long as that has paid lately. Pure; no clock.
//!
//! Giving up halves the limit, down to one look; what comes after `n` looks raises it to `2 n`. At a small limit nothing can
//! be learnt about what comes just after it, so that every 16th try in vain is followed by one with the whole of the
//! maximum. Threads share it without a lock: a change that is lost is learnt again.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Tries in vain to one that is a probe.
const PROBE_EVERY: u32 = 16;

#[derive(Debug)]
pub(super) struct Patience {
    max: u32,
    limit: AtomicU32,
    in_vain: AtomicU32,
}

impl Patience {
    /// At most `max` looks, one at least; that many at first.
    pub(super) fn new(max: u32) -> Patience {
        let max = max.max(1);
        Patience { max, limit: AtomicU32::new(max), in_vain: AtomicU32::new(0) }
    }

    /// Looks that a try may take now.
    pub(super) fn limit(&self) -> u32 {
        let probe = self.in_vain.load(Ordering::Relaxed) % PROBE_EVERY == PROBE_EVERY - 1;
        if probe { self.max } else { self.limit.load(Ordering::Relaxed) }
    }

    /// It came after so many looks in vain.
    pub(super) fn paid(&self, looks: u32) {
        let wanted = looks.saturating_mul(2).min(self.max);
        if wanted > self.limit.load(Ordering::Relaxed) {
            self.limit.store(wanted, Ordering::Relaxed);
        }
    }

    /// It did not come.
    pub(super) fn gave_up(&self) {
        let before = self.in_vain.load(Ordering::Relaxed);
        self.in_vain.store(before.wrapping_add(1), Ordering::Relaxed);
        // A probe says nothing about a smaller limit.
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

    /// One try for what comes after so many looks in vain. Tells how many it took.
    fn attempt(patience: &Patience, after: u32) -> u32 {
        let limit = patience.limit();
        if after < limit {
            patience.paid(after);
            after
        } else {
            patience.gave_up();
            limit
        }
    }

    #[test]
    fn it_halves_and_probes() {
        let patience = Patience::new(32);
        let looks: Vec<u32> = (0..33).map(|_| attempt(&patience, NEVER)).collect();
        assert_eq!(looks[..7], [32, 16, 8, 4, 2, 1, 1]);
        let long: Vec<usize> = (1..33).filter(|i| looks[*i] == 32).collect();
        assert_eq!(long, [15, 31]);
    }

    #[test]
    fn a_probe_that_pays_raises_it() {
        let patience = Patience::new(32);
        (0..15).for_each(|_| {
            attempt(&patience, NEVER);
        });
        assert_eq!(attempt(&patience, 10), 10);
        // The try after a probe is one again, until one is in vain.
        attempt(&patience, NEVER);
        assert_eq!(patience.limit(), 20);
    }

    proptest! {
        #[test]
        fn it_stays_within_bounds(max in 0..1000u32, tries in prop::collection::vec(0..2000u32, 0..300)) {
            let patience = Patience::new(max);
            for after in tries {
                attempt(&patience, after);
                prop_assert!((1..=max.max(1)).contains(&patience.limit()));
            }
        }

        #[test]
        fn whatever_was_before_it_finds_what_pays(
            max in 1..1000u32,
            before in prop::collection::vec(0..2000u32, 0..300),
            after: u32,
        ) {
            let patience = Patience::new(max);
            for tried in before {
                attempt(&patience, tried);
            }
            let after = after % max;
            (0..=PROBE_EVERY).for_each(|_| {
                attempt(&patience, after);
            });
            for _ in 0..100 {
                prop_assert_eq!(attempt(&patience, after), after);
            }
        }

        #[test]
        fn whatever_was_before_little_is_wasted_in_the_long_run(
            max in 1..1000u32,
            before in prop::collection::vec(0..2000u32, 0..300),
        ) {
            let patience = Patience::new(max);
            for tried in before {
                attempt(&patience, tried);
            }
            (0..2 * PROBE_EVERY).for_each(|_| {
                attempt(&patience, NEVER);
            });
            let wasted: u32 = (0..10 * PROBE_EVERY).map(|_| attempt(&patience, NEVER)).sum();
            prop_assert_eq!(wasted, 10 * (max + PROBE_EVERY - 1));
        }
    }
}
