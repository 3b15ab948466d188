//! Adapts how long the engine polls for work before it sleeps.
//!
//! Waking a thread on an idle core takes tens of microseconds, which the waiter of the answer pays.
//! A sleeping thread also leaves its core free, so the scheduler moves its peers between cores.
//! Polling costs nothing while no other thread needs the core. The engine yields between two polls.
//! If it gets the core back late, it backs off. It sleeps without polling, for longer each time,
//! until a pause passes without another thread on its core. The limit follows the rule of the
//! kernel's halt polling: it grows while work arrives within the maximum, and shrinks otherwise.
//!
//! # Concurrency
//! No I/O, no locks, no clock. The engine thread owns the state and passes measured times.

use std::time::Duration;

/// Default maximum polling time. A peer that reads or writes 1 MiB at a time through a file
/// system takes 200 us between an answer and the next request.
pub const ENGINE_LOOK: Duration = Duration::from_micros(400);
/// Smallest non-zero limit; the next step down is no polling.
const MIN_LIMIT: Duration = Duration::from_micros(25);
/// Minimum duration of a yield in which another thread ran, possibly one that waited for the
/// engine.
const SWITCH: Duration = Duration::from_micros(3);
/// Number of consecutive pauses with such a yield after which the engine backs off. Two threads
/// then share one core, and sleeping switches between them with fewer calls. The number is large
/// because threads with a core each separate: the scheduler places a woken thread on the other
/// core.
const MAX_SWITCHED_ROW: u32 = 128;
/// Minimum duration of a yield in which a thread ran that has its own work and does not wait for
/// the engine.
const CONTENDED: Duration = Duration::from_millis(1);
/// Number of sleeps without polling per back-off: first and maximum.
const BACK_OFF_SLEEPS: [u32; 2] = [128, 4096];
/// Maximum duration of a sleep that does not count.
const SHORT_SLEEP: Duration = Duration::from_micros(5);

/// The state of one thread.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Maximum limit.
    max_limit: Duration,
    limit: Duration,
    /// Sleeps until the limit may grow again.
    sleeps_left: u32,
    /// Number of sleeps of the next back-off.
    next: u32,
    /// Whether another thread ran in this pause; `None` before the first yield.
    switched: Option<bool>,
    /// Number of consecutive pauses in which another thread ran and that did not end in sleep.
    switched_row: u32,
}

impl Spin {
    /// Creates a state with the maximum limit `max_limit`. Zero disables polling.
    pub(crate) fn new(max_limit: Duration) -> Spin {
        Spin {
            max_limit,
            limit: Duration::ZERO,
            sleeps_left: 0,
            next: BACK_OFF_SLEEPS[0],
            switched: None,
            switched_row: 0,
        }
    }

    /// Returns how long to poll after the last work.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Records that polling found work `idle` after the last work.
    pub(crate) fn found(&mut self, idle: Duration) {
        if idle > self.max_limit {
            self.shrink();
        }
        match self.switched.take() {
            Some(true) => {
                self.switched_row += 1;
                if self.switched_row == MAX_SWITCHED_ROW {
                    self.back_off();
                }
            }
            Some(false) => *self = Spin { limit: self.limit, ..Spin::new(self.max_limit) },
            None => {}
        }
    }

    /// Records that work arrived `idle` after the last work, and that the thread slept.
    pub(crate) fn slept(&mut self, idle: Duration) {
        self.switched = None;
        if self.sleeps_left > 0 {
            self.sleeps_left -= u32::from(idle > SHORT_SLEEP);
        } else if idle <= self.max_limit {
            self.limit = (self.limit * 2).max(MIN_LIMIT).min(self.max_limit);
        } else {
            self.shrink();
        }
    }

    /// Records an empty poll followed by a yield of `away`.
    pub(crate) fn yielded(&mut self, away: Duration) {
        self.switched = Some(away > SWITCH || self.switched == Some(true));
        if away > CONTENDED {
            self.back_off();
        }
    }

    fn shrink(&mut self) {
        self.limit /= 2;
        if self.limit < MIN_LIMIT {
            self.limit = Duration::ZERO;
        }
    }

    fn back_off(&mut self) {
        let next = (2 * self.next).min(BACK_OFF_SLEEPS[1]);
        *self = Spin { sleeps_left: self.next, next, ..Spin::new(self.max_limit) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_LIMIT: Duration = ENGINE_LOOK;
    const MICRO: Duration = Duration::from_micros(1);
    const SOON: Duration = Duration::from_micros(60);
    const LATE: Duration = Duration::from_millis(1);

    fn limits(spin: &mut Spin, idle: Duration, count: usize) -> Vec<u128> {
        let after = |_| {
            spin.slept(idle);
            spin.limit().as_micros()
        };
        (0..count).map(after).collect()
    }

    /// Returns a state with the maximum limit.
    fn eager() -> Spin {
        let mut spin = Spin::new(MAX_LIMIT);
        assert_eq!(limits(&mut spin, SOON, 5), [25, 50, 100, 200, 400]);
        spin
    }

    /// Simulates a pause that finds work, with one yield of `away`.
    fn pause(spin: &mut Spin, away: Duration) {
        for away in [MICRO, away, MICRO] {
            spin.yielded(away);
        }
        spin.found(SOON);
    }

    /// Returns the number of sleeps until polling resumes.
    fn sleeps(spin: &mut Spin) -> u32 {
        let mut sleeps = 0;
        while spin.limit().is_zero() {
            spin.slept(SOON);
            sleeps += 1;
        }
        sleeps
    }

    #[test]
    fn the_limit_grows_while_work_arrives_soon_and_shrinks_to_zero() {
        let mut spin = Spin::new(MAX_LIMIT);
        assert_eq!(spin.limit(), Duration::ZERO);
        assert_eq!(limits(&mut spin, LATE, 2), [0, 0]);
        assert_eq!(limits(&mut spin, SOON, 6), [25, 50, 100, 200, 400, 400]);
        assert_eq!(limits(&mut spin, LATE, 6), [200, 100, 50, 25, 0, 0]);
        assert_eq!(limits(&mut spin, MAX_LIMIT, 1), [25]);
        assert_eq!(limits(&mut spin, MAX_LIMIT + Duration::from_nanos(1), 1), [0]);
    }

    #[test]
    fn the_limit_never_exceeds_its_maximum() {
        let mut spin = Spin::new(60 * MICRO);
        assert_eq!(limits(&mut spin, SOON, 4), [25, 50, 60, 60]);
        assert_eq!(limits(&mut spin, SOON + MICRO, 1), [30]);
        let mut never = Spin::new(Duration::ZERO);
        assert_eq!(limits(&mut never, MICRO, 3), [0; 3]);
        assert_eq!(limits(&mut never, Duration::ZERO, 3), [0; 3]);
    }

    #[test]
    fn late_work_shrinks_the_limit_even_if_polling_finds_it() {
        let mut spin = eager();
        spin.found(MAX_LIMIT);
        assert_eq!(spin.limit(), MAX_LIMIT);
        spin.found(MAX_LIMIT + MICRO);
        assert_eq!(spin.limit(), MAX_LIMIT / 2);
    }

    #[test]
    fn only_real_sleeps_end_a_back_off() {
        let mut spin = eager();
        spin.yielded(CONTENDED + MICRO);
        (0..10_000).for_each(|_| spin.slept(SHORT_SLEEP));
        assert_eq!(sleeps(&mut spin), 129);
    }

    #[test]
    fn a_contended_core_starts_a_back_off() {
        let mut spin = eager();
        spin.yielded(CONTENDED);
        assert_eq!(spin.limit(), MAX_LIMIT);
        spin.yielded(CONTENDED + MICRO);
        assert_eq!(spin.limit(), Duration::ZERO);
        assert_eq!(sleeps(&mut spin), 129);
    }

    #[test]
    fn many_switched_pauses_start_a_back_off() {
        let mut spin = eager();
        for _ in 0..3 {
            (1..MAX_SWITCHED_ROW).for_each(|_| pause(&mut spin, CONTENDED));
            // Work found before the first yield does not count.
            spin.found(SOON);
            // One pause without a switch resets the count.
            pause(&mut spin, SWITCH);
        }
        (1..MAX_SWITCHED_ROW).for_each(|_| pause(&mut spin, CONTENDED));
        assert_eq!(spin.limit(), MAX_LIMIT);
        pause(&mut spin, SWITCH + MICRO);
        assert_eq!(spin.limit(), Duration::ZERO);
    }

    #[test]
    fn pauses_that_end_in_sleep_do_not_count() {
        let mut spin = eager();
        (1..MAX_SWITCHED_ROW).for_each(|_| pause(&mut spin, CONTENDED));
        spin.yielded(CONTENDED);
        spin.slept(SOON);
        spin.found(SOON);
        assert_eq!(spin.limit(), MAX_LIMIT);
        pause(&mut spin, CONTENDED);
        assert_eq!(spin.limit(), Duration::ZERO);
    }

    #[test]
    fn back_offs_double_until_a_pause_has_the_core_to_itself() {
        let mut spin = eager();
        let again = |spin: &mut Spin| {
            spin.yielded(LATE + MICRO);
            sleeps(spin)
        };
        let sleeps_per_back_off: Vec<u32> = (0..7).map(|_| again(&mut spin)).collect();
        assert_eq!(sleeps_per_back_off, [129, 257, 513, 1025, 2049, 4097, 4097]);
        // Work found with a switch or before a yield does not reset the back-off.
        pause(&mut spin, CONTENDED);
        spin.found(SOON);
        assert_eq!(again(&mut spin), 4097);
        pause(&mut spin, MICRO);
        assert_eq!(again(&mut spin), 129);
    }
}
