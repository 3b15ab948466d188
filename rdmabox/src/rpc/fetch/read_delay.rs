//! Learns how long to wait before the first READ of an answer.
//!
//! A READ that comes before the answer is wasted: it costs the host's card as much as one that
//! finds it. If a later READ finds the answer, a longer delay would have saved the first one: it
//! grows by a quarter and a constant. Each answer that the first READ finds lowers it by a small
//! part. The two balance when about one READ of a thousand comes too early. So a host that answers
//! within a round trip has no delay. An answer that comes as a message, because the call took long,
//! changes nothing.
//!
//! # Concurrency
//! Shared by threads without a lock; a lost update is learnt again. No clock.

use std::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Longest delay. A longer one would make calls slower than a message does.
const MAX_NANOS: u64 = 200_000;
/// Smallest step up.
const STEP_NANOS: u64 = 1_000;
/// A step up is this part of the delay, and a step down that one.
const UP: u64 = 4;
const DOWN: u64 = 4096;
/// Fractions of a nanosecond are kept, so that short delays also fall.
const UNIT: u64 = DOWN;

#[derive(Debug, Default)]
pub(super) struct ReadDelay {
    /// In nanoseconds times `UNIT`.
    delay: AtomicU64,
}

impl ReadDelay {
    /// Returns the time to wait before the first READ.
    pub(super) fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay.load(Ordering::Relaxed) / UNIT)
    }

    /// Records an answer that was fetched, and whether the first READ came too early for it.
    pub(super) fn record(&self, is_early: bool) {
        let delay = self.delay.load(Ordering::Relaxed);
        let next = match is_early {
            true => (delay + delay / UP + STEP_NANOS * UNIT).min(MAX_NANOS * UNIT),
            false => delay - delay.div_ceil(DOWN),
        };
        if next != delay {
            self.delay.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::iter::repeat_n;

    use proptest::prelude::*;

    use super::*;

    /// Makes calls whose answers take these times. Returns the READs that came too early.
    fn calls(delay: &ReadDelay, times: impl IntoIterator<Item = u64>) -> u64 {
        let mut early = 0;
        for nanos in times {
            let is_early = delay.delay() < Duration::from_nanos(nanos);
            delay.record(is_early);
            early += u64::from(is_early);
        }
        early
    }

    #[test]
    fn an_answer_within_a_round_trip_is_not_waited_for() {
        let delay = ReadDelay::default();
        assert_eq!(calls(&delay, repeat_n(0, 10_000)), 0);
        assert_eq!(delay.delay(), Duration::ZERO);
    }

    #[test]
    fn the_delay_stays_within_its_limit_and_falls_to_nothing() {
        let delay = ReadDelay::default();
        calls(&delay, repeat_n(u64::MAX, 100));
        assert_eq!(delay.delay(), Duration::from_nanos(MAX_NANOS));
        calls(&delay, repeat_n(0, 100_000));
        assert_eq!(delay.delay(), Duration::ZERO);
    }

    proptest! {
        /// Of 10,000 answers at most 50 take more than one READ, the first ones included.
        #[test]
        fn few_reads_come_too_early(usual in 0..MAX_NANOS / 4, spread in 1..MAX_NANOS / 2, seed: u64) {
            let delay = ReadDelay::default();
            // A linear congruential generator.
            let next = |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            let states = std::iter::successors(Some(seed), next).skip(1);
            let times = states.take(10_000).map(|state| usual + (state >> 33) % spread);
            let early = calls(&delay, times);
            prop_assert!(early <= 50, "{} READs came too early", early);
        }

        /// One answer of 2,000 takes very long, and the others wait no longer for it.
        #[test]
        fn rare_delays_of_the_host_change_little(usual in 1_000..MAX_NANOS / 8) {
            let delay = ReadDelay::default();
            calls(&delay, (0..100_000).map(|call| if call % 2000 == 0 { u64::MAX } else { usual }));
            prop_assert!(delay.delay() < Duration::from_nanos(usual * 2 + 2 * STEP_NANOS));
        }
    }
}
