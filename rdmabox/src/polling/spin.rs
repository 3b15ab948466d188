//! Whether a thread that has nothing to do looks for work before it sleeps, where the next work may come soon.
//!
//! To be woken costs tens of microseconds where a core has to leave its idle state, and is paid by whoever waits for the answer. To
//! look in vain costs processor time, and holds up those who would have had the core. Each look says which it was:
//!
//! - It found work. Looking pays: the next pause begins with a look, too.
//! - It found none. The next 2 pauses begin with sleep, then 4, up to 128, as long as no look finds anything: where
//!   work is rare, one pause in 129 has a look.
//! - Another thread has had the core meanwhile: the look ends, and says nothing of work. It costs no more than the smallest penalty.
//!   That thread may be the one that makes the work.
//!
//! A sleep that ends at once says that a look would have found the work.

use std::time::Duration;

/// Longest look.
pub(crate) const LOOK: Duration = Duration::from_micros(50);
/// A sleep that is over by then has been for nothing.
const AT_ONCE: Duration = Duration::from_micros(15);
/// A step of a look that takes longer has let somebody else run.
const CROWDED: Duration = Duration::from_micros(20);
/// Pauses without a look after the first one that was in vain, and after many.
const MIN_PENALTY: u32 = 2;
const MAX_PENALTY: u32 = 128;

/// What has been learnt. Pure.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Of the last look that was in vain; zero where looking pays.
    penalty: u32,
    /// Pauses that are yet to begin with sleep.
    without: u32,
}

impl Spin {
    /// True if this pause begins with a look.
    pub(crate) fn looks(&self) -> bool {
        self.without == 0
    }

    /// True if a look goes on that began `since` ago and whose last step took `step`.
    pub(crate) fn goes_on(&mut self, since: Duration, step: Duration) -> bool {
        if step > CROWDED {
            self.without = MIN_PENALTY;
        } else if since > LOOK {
            self.penalty = (2 * self.penalty).clamp(MIN_PENALTY, MAX_PENALTY);
            self.without = self.penalty;
        } else {
            return true;
        }
        false
    }

    /// A look has found work.
    pub(crate) fn found(&mut self) {
        *self = Spin::default();
    }

    /// A pause ended with a sleep, of so long.
    pub(crate) fn slept(&mut self, time: Duration) {
        if time <= AT_ONCE {
            self.found();
        } else {
            self.without = self.without.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP: Duration = Duration::from_micros(1);
    const LATE: Duration = Duration::from_millis(1);

    /// A pause of `idle`; with the time that was spent looking.
    fn pause(spin: &mut Spin, idle: Duration) -> Duration {
        let mut since = Duration::ZERO;
        if spin.looks() {
            loop {
                if since >= idle {
                    spin.found();
                    return since;
                }
                since += STEP;
                if !spin.goes_on(since, STEP) {
                    break;
                }
            }
        }
        spin.slept(idle.saturating_sub(since));
        since
    }

    #[test]
    fn looks_in_vain_become_rare() {
        let mut spin = Spin::default();
        let looks: Vec<usize> = (0..1000).filter(|_| pause(&mut spin, LATE) > Duration::ZERO).collect();
        // The sleep after a look in vain counts as one of those without.
        assert_eq!(looks, [0, 2, 6, 14, 30, 62, 126, 254, 382, 510, 638, 766, 894]);
    }

    #[test]
    fn work_that_comes_within_a_look_is_looked_for_each_time() {
        let mut spin = Spin::default();
        (0..100).for_each(|_| assert_eq!(pause(&mut spin, LOOK), LOOK));
    }

    #[test]
    fn a_core_that_others_want_costs_two_pauses_whatever_was_before() {
        for before in [0, 10, 1000] {
            let mut spin = Spin::default();
            (0..before).for_each(|_| {
                pause(&mut spin, LATE);
            });
            while !spin.looks() {
                pause(&mut spin, LATE);
            }
            let penalty = spin.penalty;
            assert!(spin.goes_on(STEP, CROWDED));
            assert!(!spin.goes_on(STEP, CROWDED + STEP));
            assert_eq!((spin.without, spin.penalty), (MIN_PENALTY, penalty));
        }
    }

    proptest! {
        #[test]
        fn whatever_was_before_it_notices_that_work_comes_soon(
            before in prop::collection::vec(0..200u64, 0..300),
            soon in 0..50u64,
        ) {
            let mut spin = Spin::default();
            before.into_iter().for_each(|idle| {
                pause(&mut spin, Duration::from_micros(idle));
            });
            prop_assert!(spin.without <= MAX_PENALTY && spin.penalty <= MAX_PENALTY);
            let soon = Duration::from_micros(soon);
            (0..MAX_PENALTY).for_each(|_| {
                pause(&mut spin, soon);
            });
            (0..100).for_each(|_| assert_eq!(pause(&mut spin, soon), soon));
        }

        #[test]
        fn whatever_was_before_work_that_is_rare_costs_little(before in prop::collection::vec(0..200u64, 0..300)) {
            let mut spin = Spin::default();
            before.into_iter().for_each(|idle| {
                pause(&mut spin, Duration::from_micros(idle));
            });
            // Until looks are as rare as they become.
            (0..2 * MAX_PENALTY).for_each(|_| {
                pause(&mut spin, LATE);
            });
            let looked: Duration = (0..10 * MAX_PENALTY).map(|_| pause(&mut spin, LATE)).sum();
            prop_assert_eq!(looked, 10 * (LOOK + STEP));
        }
    }
}
