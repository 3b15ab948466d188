//! How many polls that find nothing are tried again before sleep: a fixed number, or one that is learnt.
//!
//! Spinning costs CPU time and, where a poll is a system call, the sender's time as well; sleeping costs a wakeup. Which
//! is cheaper depends on how soon completions come, and that changes. [`Retry::Adapt`] learns it from the one thing
//! that the poller sees anyway, how each spin ended:
//!
//! - With a completion after `r` retries: spinning paid off. The budget rises to `2 r` if it is below, so that a
//!   completion that comes a little later next time is still caught.
//! - With sleep: the spin was wasted. The budget halves, down to a sixteenth of the maximum but to 1 at least.
//!
//! At a small budget nothing can be learnt about completions that come just after it. So every now and then a spin is
//! a probe, which gets the maximum whatever the budget is: after 8 sleeps at first, then after twice as many each time
//! that a probe finds nothing new, up to 64. One that finds a completion beyond the budget raises it and makes
//! probes frequent again. Thus peers that have become fast are noticed within 64 sleeps, and where spinning never
//! pays, at most `max / 64 + max / 16 + 1` polls per sleep are wasted in the long run.
//!
//! Halving after a loss and spinning about as long as it took before is the adaptive competitive spinning of Karlin, Li,
//! Manasse and Owicki (SOSP 1991), with polls instead of a clock.

/// The budget of adaptive polling: polls without a completion that are tried again before the queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Always so many. 0 is event mode, and `u32::MAX` is busy polling.
    Fixed(u32),
    /// At most `max`, beginning with it, and fewer where that does not pay: a spin that ends with sleep halves the
    /// budget (to a sixteenth of `max`, and to 1 at least), one that ends with a completion lifts it to twice what that
    /// took. Probes with the whole of `max`, one in 9 sleeps at first and one in 65 later, find out when it pays again.
    /// The extremes are as with `Fixed`.
    Adapt {
        /// Upper bound of the budget.
        max: u32,
    },
}

impl Retry {
    /// The most that a spin may take.
    pub fn max(self) -> u32 {
        match self {
            Retry::Fixed(max) | Retry::Adapt { max } => max,
        }
    }
}

impl From<u32> for Retry {
    fn from(retries: u32) -> Retry {
        Retry::Fixed(retries)
    }
}

/// Sleeps before the first probe, and after a probe that found something new.
const MIN_GAP: u32 = 8;
/// Most sleeps between two probes.
const MAX_GAP: u32 = 64;

/// What has been learnt.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    retry: Retry,
    current: u32,
    /// This spin may take the maximum.
    probing: bool,
    /// Sleeps until the next probe.
    until_probe: u32,
    /// Sleeps between the next probe and the one after it.
    gap: u32,
}

impl Budget {
    pub(super) fn new(retry: Retry) -> Budget {
        Budget { retry, current: retry.max(), probing: false, until_probe: MIN_GAP, gap: MIN_GAP }
    }

    /// Retries that the current spin may take.
    pub(super) fn limit(&self) -> u32 {
        if self.probing { self.retry.max() } else { self.current }
    }

    /// What a spin that is no probe may take.
    pub(super) fn current(&self) -> u32 {
        self.current
    }

    fn floor(max: u32) -> u32 {
        (max / 16).max(1)
    }

    /// A spin ended with a completion after `retries` polls without one.
    pub(super) fn paid(&mut self, retries: u32) {
        let Retry::Adapt { max } = self.retry else { return };
        if self.probing && retries > self.current {
            self.probing = false;
            self.gap = MIN_GAP;
            self.until_probe = MIN_GAP;
        }
        // A probe that is served within the budget has found out nothing, and goes on with the next spin.
        self.current = self.current.max(retries.saturating_mul(2).min(max));
    }

    /// A spin ended with sleep.
    pub(super) fn slept(&mut self) {
        let Retry::Adapt { max } = self.retry else { return };
        if std::mem::take(&mut self.probing) {
            self.gap = (self.gap * 2).min(MAX_GAP);
            self.until_probe = self.gap;
            return;
        }
        self.current = (self.current / 2).max(Self::floor(max));
        self.until_probe -= 1;
        if self.until_probe == 0 {
            // With the whole budget a spin is no probe; it counts as one that is due.
            self.until_probe = 1;
            self.probing = self.current < max;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn adapt(max: u32) -> Budget {
        Budget::new(Retry::Adapt { max })
    }

    /// One spin for a completion that comes with the poll after `after` empty ones. Tells the retries that it took.
    fn spin(budget: &mut Budget, after: u32) -> u32 {
        let limit = budget.limit();
        if after <= limit {
            budget.paid(after)
        } else {
            budget.slept()
        }
        after.min(limit)
    }

    const NEVER: u32 = u32::MAX;

    #[test]
    fn a_fixed_budget_stays() {
        let mut budget = Budget::new(7.into());
        for after in [NEVER, 3, NEVER, 7, 0, NEVER] {
            spin(&mut budget, after);
            assert_eq!(budget.limit(), 7);
        }
    }

    #[test]
    fn it_halves_down_to_a_sixteenth() {
        let mut budget = adapt(120);
        let limits: Vec<u32> = (0..6)
            .map(|_| {
                spin(&mut budget, NEVER);
                budget.limit()
            })
            .collect();
        assert_eq!(limits, [60, 30, 15, 7, 7, 7]);
        let mut small = adapt(3);
        (0..5).for_each(|_| {
            spin(&mut small, NEVER);
        });
        assert_eq!(small.limit(), 1);
    }

    #[test]
    fn it_rises_to_twice_what_paid() {
        let mut budget = adapt(120);
        (0..7).for_each(|_| {
            spin(&mut budget, NEVER);
        });
        assert_eq!(budget.limit(), 7);
        let limits = [3, 5, 2, 10, 20, 40, 60].map(|after| {
            spin(&mut budget, after);
            budget.limit()
        });
        assert_eq!(limits, [7, 10, 10, 20, 40, 80, 120]);
    }

    #[test]
    fn probes_become_rare_while_nothing_comes() {
        let mut budget = adapt(120);
        let probes: Vec<u32> = (1..=300).filter(|_| spin(&mut budget, NEVER) == 120).collect();
        // The first spin has the whole budget anyway.
        assert_eq!(probes, [1, 9, 26, 59, 124, 189, 254]);
    }

    #[test]
    fn short_spins_do_not_put_a_probe_off() {
        // Half of the completions come at once, the others after a time that a floor of 7 never sees.
        let mut budget = adapt(120);
        (0..400).for_each(|_| {
            spin(&mut budget, NEVER);
        });
        assert_eq!(budget.limit(), 7);
        for _ in 0..MAX_GAP + 1 {
            spin(&mut budget, 2);
            spin(&mut budget, 50);
        }
        assert_eq!(budget.limit(), 100);
    }

    proptest! {
        #[test]
        fn it_stays_within_bounds(max in 1..100_000u32, spins in prop::collection::vec(any::<u32>(), 0..300)) {
            let mut budget = adapt(max);
            for after in spins {
                spin(&mut budget, after % (2 * max));
                prop_assert!((1..=max).contains(&budget.limit()));
                prop_assert!((Budget::floor(max)..=max).contains(&budget.current()));
            }
        }

        #[test]
        fn whatever_was_before_it_finds_what_pays_and_keeps_it(
            max in 1..5000u32,
            before in prop::collection::vec(any::<u32>(), 0..300),
            after in any::<u32>(),
        ) {
            let mut budget = adapt(max);
            for spun in before {
                spin(&mut budget, spun % (2 * max));
            }
            let after = after % (max + 1);
            (0..=MAX_GAP).for_each(|_| {
                spin(&mut budget, after);
            });
            prop_assert!(budget.current() >= after);
            // No sleep from here on.
            for _ in 0..1000 {
                prop_assert_eq!(spin(&mut budget, after), after);
                prop_assert!(budget.current() >= after);
            }
        }

        #[test]
        fn whatever_was_before_it_stops_spinning_where_nothing_pays(
            max in 1..5000u32,
            before in prop::collection::vec(any::<u32>(), 0..300),
        ) {
            let mut budget = adapt(max);
            for spun in before {
                spin(&mut budget, spun % (2 * max));
            }
            // Down to the floor, and until probes are as rare as they become.
            (0..200).for_each(|_| {
                spin(&mut budget, NEVER);
            });
            prop_assert_eq!(budget.current(), Budget::floor(max));
            let rounds = 10;
            let wasted: u64 = (0..rounds * (MAX_GAP + 1)).map(|_| u64::from(spin(&mut budget, NEVER))).sum();
            let floor = u64::from(Budget::floor(max) * MAX_GAP);
            let expected = if Budget::floor(max) == max { 65 * u64::from(max) } else { floor + u64::from(max) };
            prop_assert_eq!(wasted, u64::from(rounds) * expected);
        }
    }
}
