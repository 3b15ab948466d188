//! How long to look for work before going to sleep: as long as that has been paying lately.
//!
//! To wake a thread on a core that has gone idle takes tens of microseconds, on a virtual machine in particular, and is
//! paid by whoever waits for the answer. Looking instead costs nobody anything as long as nobody else wants the core:
//! between two looks the thread yields, and when it gets the core back late, others do want it. The rule for the limit is
//! that of the kernel's halt polling: it grows while work comes within the longest limit, and shrinks when it does not.

use std::time::Duration;

/// Longest time to look.
const LONGEST: Duration = Duration::from_micros(100);
/// The first step up; the step below it is not to look at all.
const SHORTEST: Duration = Duration::from_micros(25);
/// A yield that takes longer has let somebody else run: one that was waiting for it, it may be, on the same core.
const SWITCHED: Duration = Duration::from_micros(3);
/// So many of them in a row, and two threads are passing one core to and fro. Sleeping does that with fewer calls.
const TO_AND_FRO: u32 = 4;
/// A yield that takes longer has let somebody run who has work of his own.
const CROWDED: Duration = Duration::from_micros(20);
/// Sleeps without a look after either.
const MODEST: u32 = 128;

/// The state of one thread.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    limit: Duration,
    /// Sleeps until the limit may grow again.
    modest: u32,
    /// Yields in a row that let somebody else run.
    switched: u32,
}

impl Spin {
    /// How long to look from the last work on.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Work came `idle` after the last, some of which was slept.
    pub(crate) fn slept(&mut self, idle: Duration) {
        if self.modest > 0 {
            self.modest -= 1;
        } else if idle <= LONGEST {
            self.limit = (self.limit * 2).clamp(SHORTEST, LONGEST);
        } else {
            self.limit /= 2;
            if self.limit < SHORTEST {
                self.limit = Duration::ZERO;
            }
        }
    }

    /// The thread was off the core for as long when it yielded.
    pub(crate) fn yielded(&mut self, away: Duration) {
        self.switched = if away > SWITCHED { self.switched + 1 } else { 0 };
        if away > CROWDED || self.switched == TO_AND_FRO {
            *self = Spin { limit: Duration::ZERO, modest: MODEST, switched: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(60);
    const LATE: Duration = Duration::from_millis(1);

    fn limits(spin: &mut Spin, idle: Duration, count: usize) -> Vec<u128> {
        let after = |_| {
            spin.slept(idle);
            spin.limit().as_micros()
        };
        (0..count).map(after).collect()
    }

    #[test]
    fn it_grows_while_work_comes_soon_and_shrinks_to_nothing() {
        let mut spin = Spin::default();
        assert_eq!(spin.limit(), Duration::ZERO);
        assert_eq!(limits(&mut spin, LATE, 2), [0, 0]);
        assert_eq!(limits(&mut spin, SOON, 4), [25, 50, 100, 100]);
        assert_eq!(limits(&mut spin, LATE, 4), [50, 25, 0, 0]);
        assert_eq!(limits(&mut spin, LONGEST, 1), [25]);
        assert_eq!(limits(&mut spin, LONGEST + Duration::from_nanos(1), 1), [0]);
    }

    #[test]
    fn where_others_want_the_core_it_sleeps_at_once() {
        let mut spin = Spin::default();
        limits(&mut spin, SOON, 3);
        spin.yielded(CROWDED);
        assert_eq!(spin.limit(), LONGEST);
        spin.yielded(LATE);
        assert_eq!(limits(&mut spin, SOON, MODEST as usize + 1)[MODEST as usize - 1..], [0, 25]);
    }

    #[test]
    fn where_another_takes_the_core_each_time_it_sleeps_at_once() {
        let mut spin = Spin::default();
        limits(&mut spin, SOON, 3);
        for _ in 0..10 {
            for _ in 1..TO_AND_FRO {
                spin.yielded(CROWDED);
            }
            spin.yielded(SWITCHED);
        }
        assert_eq!(spin.limit(), LONGEST);
        for _ in 0..TO_AND_FRO {
            assert_eq!(spin.limit(), LONGEST);
            spin.yielded(CROWDED);
        }
        assert_eq!(spin.limit(), Duration::ZERO);
    }
}
