//! Budget of empty polls before sleep: fixed, or adapted to the observed completions.
//!
//! Spinning costs CPU time; sleeping costs a wakeup. [`Retry::Adapt`] learns from the end of each
//! spin which costs less:
//! - After a completion with `r` retries, the budget rises to at least `2 r`, so a slightly later
//!   completion is still caught.
//! - After a sleep, the budget halves, down to a sixteenth of the maximum, but at least 1.
//!
//! A small budget cannot learn about slightly later completions. So some spins are probes with the
//! maximum budget. The first comes after 8 sleeps. While probes fail, the gap doubles up to 64
//! sleeps. A successful probe raises the budget and resets the gap. If spinning never succeeds, at
//! most `max / 64 + max / 16 + 1` polls per sleep are wasted. The scheme is adaptive competitive
//! spinning (Karlin, Li, Manasse and Owicki, SOSP 1991).

/// Budget of adaptive polling: empty polls that are repeated before the queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Retry {
    /// Fixed number of retries. 0 is event mode, `u32::MAX` is busy polling.
    Fixed(u32),
    /// Budget between a sixteenth of `max` (at least 1) and `max`, which is the initial value. A
    /// spin that ends with sleep halves it. A spin that ends with a completion raises it to twice
    /// the retries of that spin. Probes with the whole of `max`, first one in 9 sleeps and later
    /// one in 65, detect that spinning succeeds again. The extremes are as for `Fixed`.
    Adapt {
        /// Maximum budget.
        max: u32,
    },
}

impl Retry {
    /// Returns the maximum number of retries of a spin.
    pub(crate) fn max(self) -> u32 {
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

/// Sleeps before the first probe, and after a successful probe.
const MIN_GAP: u32 = 8;
/// Maximum number of sleeps between two probes.
const MAX_GAP: u32 = 64;

/// Learned state.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    retry: Retry,
    current: u32,
    /// True if the current spin is a probe.
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

    /// Returns the retries allowed in the current spin.
    pub(super) fn limit(&self) -> u32 {
        if self.probing { self.retry.max() } else { self.current }
    }

    /// Returns the retries allowed in a spin that is not a probe.
    #[cfg(test)]
    pub(super) fn current(&self) -> u32 {
        self.current
    }

    fn floor(max: u32) -> u32 {
        (max / 16).max(1)
    }

    /// Records a spin that ended with a completion after `retries` empty polls.
    pub(super) fn completed(&mut self, retries: u32) {
        let Retry::Adapt { max } = self.retry else { return };
        if self.probing && retries > self.current {
            self.probing = false;
            self.gap = MIN_GAP;
            self.until_probe = MIN_GAP;
        }
        // A probe that succeeds within the normal budget proves nothing, so the next spin is also a
        // probe.
        self.current = self.current.max(retries.saturating_mul(2).min(max));
    }

    /// Records a spin that ended with sleep.
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
            // A spin with the whole budget needs no probe, so the probe stays due.
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

    /// Simulates one spin whose completion arrives after `after` empty polls. Returns the retries
    /// used.
    fn spin(budget: &mut Budget, after: u32) -> u32 {
        let limit = budget.limit();
        if after <= limit {
            budget.completed(after)
        } else {
            budget.slept()
        }
        after.min(limit)
    }

    const NEVER: u32 = u32::MAX;

    #[test]
    fn a_fixed_budget_never_changes() {
        let mut budget = Budget::new(7.into());
        for after in [NEVER, 3, NEVER, 7, 0, NEVER] {
            spin(&mut budget, after);
            assert_eq!(budget.limit(), 7);
        }
    }

    #[test]
    fn the_budget_halves_down_to_a_sixteenth() {
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
    fn the_budget_rises_to_twice_the_successful_retries() {
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
    fn failed_probes_become_rare() {
        let mut budget = adapt(120);
        let probes: Vec<u32> = (1..=300).filter(|_| spin(&mut budget, NEVER) == 120).collect();
        // The first spin has the whole budget in any case.
        assert_eq!(probes, [1, 9, 26, 59, 124, 189, 254]);
    }

    #[test]
    fn short_spins_do_not_delay_a_probe() {
        // Half of the completions arrive at once, the others later than the minimum budget of 7
        // reaches.
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
        fn the_budget_stays_within_its_bounds(max in 1..100_000u32, spins in prop::collection::vec(any::<u32>(), 0..300)) {
            let mut budget = adapt(max);
            for after in spins {
                spin(&mut budget, after % (2 * max));
                prop_assert!((1..=max).contains(&budget.limit()));
                prop_assert!((Budget::floor(max)..=max).contains(&budget.current()));
            }
        }

        #[test]
        fn the_budget_finds_and_keeps_a_sufficient_value_from_any_state(
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
            // No spin ends with sleep from here on.
            for _ in 0..1000 {
                prop_assert_eq!(spin(&mut budget, after), after);
                prop_assert!(budget.current() >= after);
            }
        }

        #[test]
        fn the_budget_drops_to_its_minimum_from_any_state_if_spins_fail(
            max in 1..5000u32,
            before in prop::collection::vec(any::<u32>(), 0..300),
        ) {
            let mut budget = adapt(max);
            for spun in before {
                spin(&mut budget, spun % (2 * max));
            }
            // Enough spins to reach the minimum budget and the largest gap between probes.
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
