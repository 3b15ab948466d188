//! Decides whether an idle thread polls for work for a short time before it sleeps.
//!
//! A wakeup costs tens of microseconds if the core has to leave an idle state. Futile polling
//! costs CPU time and delays other threads of the core. Each polling phase ends in one of three
//! ways:
//! - It found work: the next pause also begins with polling.
//! - It found none: the next 2 pauses begin with sleep, then 4, up to 128 while polling keeps
//!   failing.
//! - Another thread used the core: the phase ends with the smallest penalty, because that thread
//!   may produce the work.
//!
//! A sleep that ends at once shows that polling would have found the work.
//!
//! # Concurrency
//! No I/O, no locks, no clock. The owner passes the measured times.

use std::time::Duration;

/// Maximum duration of a polling phase.
pub(crate) const MAX_POLL: Duration = Duration::from_micros(50);
/// Maximum duration of a sleep that polling could have replaced.
const SHORT_SLEEP: Duration = Duration::from_micros(15);
/// Minimum duration of a poll step that shows that another thread ran.
const MAX_STEP: Duration = Duration::from_micros(20);
/// Number of pauses without polling after the first failure, and the maximum.
const MIN_PENALTY: u32 = 2;
const MAX_PENALTY: u32 = 128;

/// Learned state.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Penalty of the last failed phase; zero while polling succeeds.
    penalty: u32,
    /// Number of pauses that still begin with sleep.
    skip: u32,
}

impl Spin {
    /// Returns true if this pause begins with polling.
    pub(crate) fn polls(&self) -> bool {
        self.skip == 0
    }

    /// Returns true if the polling phase continues. It began `since` ago, and its last step took
    /// `step`.
    pub(crate) fn continues(&mut self, since: Duration, step: Duration) -> bool {
        if step > MAX_STEP {
            self.skip = MIN_PENALTY;
        } else if since > MAX_POLL {
            self.penalty = (2 * self.penalty).clamp(MIN_PENALTY, MAX_PENALTY);
            self.skip = self.penalty;
        } else {
            return true;
        }
        false
    }

    /// Records that polling found work.
    pub(crate) fn found(&mut self) {
        *self = Spin::default();
    }

    /// Records a pause that ended with a sleep of `time`.
    pub(crate) fn slept(&mut self, time: Duration) {
        if time <= SHORT_SLEEP {
            self.found();
        } else {
            self.skip = self.skip.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP: Duration = Duration::from_micros(1);
    const LATE: Duration = Duration::from_millis(1);

    /// Simulates a pause of `idle` and returns the time spent polling.
    fn pause(spin: &mut Spin, idle: Duration) -> Duration {
        let mut since = Duration::ZERO;
        if spin.polls() {
            loop {
                if since >= idle {
                    spin.found();
                    return since;
                }
                since += STEP;
                if !spin.continues(since, STEP) {
                    break;
                }
            }
        }
        spin.slept(idle.saturating_sub(since));
        since
    }

    #[test]
    fn futile_polling_becomes_rare() {
        let mut spin = Spin::default();
        let polls: Vec<usize> = (0..1000).filter(|_| pause(&mut spin, LATE) > Duration::ZERO).collect();
        // The sleep after a failed phase counts as one of the pauses without polling.
        assert_eq!(polls, [0, 2, 6, 14, 30, 62, 126, 254, 382, 510, 638, 766, 894]);
    }

    #[test]
    fn polling_continues_while_work_arrives_within_a_phase() {
        let mut spin = Spin::default();
        (0..100).for_each(|_| assert_eq!(pause(&mut spin, MAX_POLL), MAX_POLL));
    }

    #[test]
    fn a_contended_core_skips_two_pauses_from_any_state() {
        for before in [0, 10, 1000] {
            let mut spin = Spin::default();
            (0..before).for_each(|_| {
                pause(&mut spin, LATE);
            });
            while !spin.polls() {
                pause(&mut spin, LATE);
            }
            let penalty = spin.penalty;
            assert!(spin.continues(STEP, MAX_STEP));
            assert!(!spin.continues(STEP, MAX_STEP + STEP));
            assert_eq!((spin.skip, spin.penalty), (MIN_PENALTY, penalty));
        }
    }

    proptest! {
        #[test]
        fn polling_resumes_from_any_state_if_work_arrives_soon(
            before in prop::collection::vec(0..200u64, 0..300),
            soon in 0..50u64,
        ) {
            let mut spin = Spin::default();
            before.into_iter().for_each(|idle| {
                pause(&mut spin, Duration::from_micros(idle));
            });
            prop_assert!(spin.skip <= MAX_PENALTY && spin.penalty <= MAX_PENALTY);
            let soon = Duration::from_micros(soon);
            (0..MAX_PENALTY).for_each(|_| {
                pause(&mut spin, soon);
            });
            (0..100).for_each(|_| assert_eq!(pause(&mut spin, soon), soon));
        }

        #[test]
        fn polling_is_rare_from_any_state_if_work_is_rare(before in prop::collection::vec(0..200u64, 0..300)) {
            let mut spin = Spin::default();
            before.into_iter().for_each(|idle| {
                pause(&mut spin, Duration::from_micros(idle));
            });
            // Enough pauses to reach the maximum penalty.
            (0..2 * MAX_PENALTY).for_each(|_| {
                pause(&mut spin, LATE);
            });
            let polled: Duration = (0..10 * MAX_PENALTY).map(|_| pause(&mut spin, LATE)).sum();
            prop_assert_eq!(polled, 10 * (MAX_POLL + STEP));
        }
    }
}
