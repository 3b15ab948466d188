//! How long to look for work before going to sleep: as long as that has been paying lately.
//!
//! To wake a thread on a core that has gone idle takes tens of microseconds, on a virtual machine in particular, and is
//! paid by whoever waits for the answer. And a thread that sleeps leaves a core that looks free: whoever is woken next is put there, so
//! that it and its peer chase each other from core to core. Looking instead costs nobody anything as long as nobody else wants the core:
//! between two looks the thread yields, and when it gets the core back late, others do want it: then it sleeps at once for a while, and longer each
//! time, until it has had a pause without anybody else on its core. The rule for the limit is
//! that of the kernel's halt polling: it grows while work comes within the longest limit, and shrinks when it does not.

use std::time::Duration;

/// Longest time to look, unless it is told otherwise: a peer that reads or writes 1 MiB at a time through a file system takes 200 us between
/// an answer and the next request.
pub const ENGINE_LOOK: Duration = Duration::from_micros(400);
/// The first step up; the step below it is not to look at all.
const SHORTEST: Duration = Duration::from_micros(25);
/// A yield that takes longer has let somebody else run: one that was waiting for it, it may be, on the same core.
const SWITCHED: Duration = Duration::from_micros(3);
/// So many pauses in a row in which that was so, and two threads are passing one core to and fro. Sleeping does that with fewer calls. It
/// takes many: where there is a core for each they part, as the one that is woken is put on the other core.
const TO_AND_FRO: u32 = 128;
/// A yield that takes longer has let somebody run who has work of his own, and does not wait for this thread.
const CROWDED: Duration = Duration::from_millis(1);
/// Sleeps without a look after either: the first time, and at most.
const MODEST: [u32; 2] = [128, 4096];
/// A sleep that is over by then was none.
const AT_ONCE: Duration = Duration::from_micros(5);

/// The state of one thread.
#[derive(Debug)]
pub(crate) struct Spin {
    /// The longest limit.
    longest: Duration,
    limit: Duration,
    /// Sleeps until the limit may grow again.
    modest: u32,
    /// How many it will be the next time.
    next: u32,
    /// Whether somebody else has run in this pause; not known as long as the thread has not yielded.
    switched: Option<bool>,
    /// Pauses in a row in which that was so, and that did not end in sleep.
    row: u32,
}

impl Spin {
    /// Looks for `longest` at most; never if that is nothing.
    pub(crate) fn new(longest: Duration) -> Spin {
        Spin { longest, limit: Duration::ZERO, modest: 0, next: MODEST[0], switched: None, row: 0 }
    }

    /// How long to look from the last work on.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Work was there when the thread looked for it, `idle` after the last.
    pub(crate) fn found(&mut self, idle: Duration) {
        if idle > self.longest {
            self.shrink();
        }
        match self.switched.take() {
            Some(true) => {
                self.row += 1;
                if self.row == TO_AND_FRO {
                    self.hold_back();
                }
            }
            Some(false) => *self = Spin { limit: self.limit, ..Spin::new(self.longest) },
            None => {}
        }
    }

    /// Work came `idle` after the last, some of which was slept.
    pub(crate) fn slept(&mut self, idle: Duration) {
        self.switched = None;
        if self.modest > 0 {
            self.modest -= u32::from(idle > AT_ONCE);
        } else if idle <= self.longest {
            self.limit = (self.limit * 2).max(SHORTEST).min(self.longest);
        } else {
            self.shrink();
        }
    }

    /// It took so long to look in vain, and to yield.
    pub(crate) fn yielded(&mut self, away: Duration) {
        self.switched = Some(away > SWITCHED || self.switched == Some(true));
        if away > CROWDED {
            self.hold_back();
        }
    }

    fn shrink(&mut self) {
        self.limit /= 2;
        if self.limit < SHORTEST {
            self.limit = Duration::ZERO;
        }
    }

    fn hold_back(&mut self) {
        let next = (2 * self.next).min(MODEST[1]);
        *self = Spin { modest: self.next, next, ..Spin::new(self.longest) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = ENGINE_LOOK;
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

    /// One that looks as long as it may.
    fn eager() -> Spin {
        let mut spin = Spin::new(LONGEST);
        assert_eq!(limits(&mut spin, SOON, 5), [25, 50, 100, 200, 400]);
        spin
    }

    /// Work is found, and on the way there somebody else had the core for as long.
    fn pause(spin: &mut Spin, away: Duration) {
        for away in [MICRO, away, MICRO] {
            spin.yielded(away);
        }
        spin.found(SOON);
    }

    /// How many sleeps it is until it looks again.
    fn sleeps(spin: &mut Spin) -> u32 {
        let mut sleeps = 0;
        while spin.limit().is_zero() {
            spin.slept(SOON);
            sleeps += 1;
        }
        sleeps
    }

    #[test]
    fn it_grows_while_work_comes_soon_and_shrinks_to_nothing() {
        let mut spin = Spin::new(LONGEST);
        assert_eq!(spin.limit(), Duration::ZERO);
        assert_eq!(limits(&mut spin, LATE, 2), [0, 0]);
        assert_eq!(limits(&mut spin, SOON, 6), [25, 50, 100, 200, 400, 400]);
        assert_eq!(limits(&mut spin, LATE, 6), [200, 100, 50, 25, 0, 0]);
        assert_eq!(limits(&mut spin, LONGEST, 1), [25]);
        assert_eq!(limits(&mut spin, LONGEST + Duration::from_nanos(1), 1), [0]);
    }

    #[test]
    fn it_looks_no_longer_than_it_is_told() {
        let mut spin = Spin::new(60 * MICRO);
        assert_eq!(limits(&mut spin, SOON, 4), [25, 50, 60, 60]);
        assert_eq!(limits(&mut spin, SOON + MICRO, 1), [30]);
        let mut never = Spin::new(Duration::ZERO);
        assert_eq!(limits(&mut never, MICRO, 3), [0; 3]);
        assert_eq!(limits(&mut never, Duration::ZERO, 3), [0; 3]);
    }

    #[test]
    fn late_work_counts_as_late_however_it_is_found() {
        let mut spin = eager();
        spin.found(LONGEST);
        assert_eq!(spin.limit(), LONGEST);
        spin.found(LONGEST + MICRO);
        assert_eq!(spin.limit(), LONGEST / 2);
    }

    #[test]
    fn while_it_holds_back_only_sleep_counts() {
        let mut spin = eager();
        spin.yielded(CROWDED + MICRO);
        (0..10_000).for_each(|_| spin.slept(AT_ONCE));
        assert_eq!(sleeps(&mut spin), 129);
    }

    #[test]
    fn where_others_have_work_of_their_own_it_sleeps_at_once() {
        let mut spin = eager();
        spin.yielded(CROWDED);
        assert_eq!(spin.limit(), LONGEST);
        spin.yielded(CROWDED + MICRO);
        assert_eq!(spin.limit(), Duration::ZERO);
        assert_eq!(sleeps(&mut spin), 129);
    }

    #[test]
    fn where_another_takes_the_core_in_each_pause_it_sleeps_at_once() {
        let mut spin = eager();
        for _ in 0..3 {
            (1..TO_AND_FRO).for_each(|_| pause(&mut spin, CROWDED));
            // To find work without having yielded says nothing.
            spin.found(SOON);
            // Once nobody did.
            pause(&mut spin, SWITCHED);
        }
        (1..TO_AND_FRO).for_each(|_| pause(&mut spin, CROWDED));
        assert_eq!(spin.limit(), LONGEST);
        pause(&mut spin, SWITCHED + MICRO);
        assert_eq!(spin.limit(), Duration::ZERO);
    }

    #[test]
    fn pauses_that_end_in_sleep_say_nothing() {
        let mut spin = eager();
        (1..TO_AND_FRO).for_each(|_| pause(&mut spin, CROWDED));
        spin.yielded(CROWDED);
        spin.slept(SOON);
        spin.found(SOON);
        assert_eq!(spin.limit(), LONGEST);
        pause(&mut spin, CROWDED);
        assert_eq!(spin.limit(), Duration::ZERO);
    }

    #[test]
    fn each_time_it_holds_back_longer_until_it_has_the_core_to_itself() {
        let mut spin = eager();
        let again = |spin: &mut Spin| {
            spin.yielded(LATE + MICRO);
            sleeps(spin)
        };
        let held_back: Vec<u32> = (0..7).map(|_| again(&mut spin)).collect();
        assert_eq!(held_back, [129, 257, 513, 1025, 2049, 4097, 4097]);
        // To find work while others run, or before, says nothing.
        pause(&mut spin, CROWDED);
        spin.found(SOON);
        assert_eq!(again(&mut spin), 4097);
        pause(&mut spin, MICRO);
        assert_eq!(again(&mut spin), 129);
    }
}
