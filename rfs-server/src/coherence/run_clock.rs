//! A clock that stops while the server cannot run, for deadlines of clients.
//!
//! A server that was stopped, or whose machine was suspended, finds every deadline passed and the
//! messages of its clients unread. So each waiter for a deadline reads this clock at least every
//! `READING_INTERVAL`, and the clock advances by at most `MAX_ADVANCE` between two readings.
//! Without a waiter there are no readings, and no deadline that could come too late.
//!
//! # Concurrency
//! Any thread; one lock, held briefly.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use seeded_faults::seeded;

/// Maximum advance between two readings.
const MAX_ADVANCE: Duration = Duration::from_secs(1);
/// Interval in which a waiter reads the clock.
const READING_INTERVAL: Duration = Duration::from_millis(500);

static CLOCK: LazyLock<Mutex<RunClock>> = LazyLock::new(|| Mutex::new(RunClock::new(Instant::now())));

/// Returns the time of this clock, which is unrelated to other clocks.
pub(crate) fn now() -> Instant {
    let mut clock = CLOCK.lock();
    // Under the lock, so that the time never goes back.
    let now = Instant::now();
    clock.at(now)
}

/// Returns the system time until which a waiter for `deadline`, a time of this clock, may sleep
/// before it reads the clock again.
pub(crate) fn wake_for(deadline: Instant) -> Instant {
    Instant::now() + deadline.saturating_duration_since(now()).min(READING_INTERVAL)
}

#[derive(Debug)]
struct RunClock {
    /// The last reading: system time, and time of this clock.
    looked: Instant,
    time: Instant,
}

impl RunClock {
    fn new(now: Instant) -> RunClock {
        RunClock { looked: now, time: now }
    }

    fn at(&mut self, now: Instant) -> Instant {
        let passed = now.saturating_duration_since(self.looked);
        self.time += seeded!(StandstillCounts, passed, passed.min(MAX_ADVANCE));
        self.looked = now;
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stops_with_the_server() {
        let begin = Instant::now();
        let mut clock = RunClock::new(begin);
        let after = |ms| begin + Duration::from_millis(ms);
        assert_eq!(clock.at(after(0)), begin);
        for look in 1..=20 {
            assert_eq!(clock.at(after(500 * look)), after(500 * look));
        }
        // After a stop of a minute, a client still has most of its time.
        assert_eq!(clock.at(after(70_000)), after(11_000));
        assert_eq!(clock.at(after(70_001)), after(11_001));
        assert_eq!(clock.at(after(60_000)), after(11_001));
    }
}
