//! The server's clock, so that tests can turn the hands themselves.
//!
//! Threading: any thread may ask at any time. It does not measure durations: wall-clock time may jump.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Where times come from.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since 1970.
    fn now(&self) -> i64;
}

/// The system's real-time clock at its full resolution.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> i64 {
        let now = SystemTime::now();
        match now.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
        }
    }
}

/// A clock for tests: every look at it moves it by one nanosecond, so that no two times are equal.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock whose first answer is `start`.
    pub fn new(start: i64) -> ManualClock {
        ManualClock(AtomicI64::new(start))
    }

    /// The time that the next look will give.
    pub fn peek(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Moves the clock.
    pub fn set(&self, now: i64) {
        self.0.store(now, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_is_in_this_century() {
        let year_2020 = 1_577_836_800_000_000_000;
        assert!(SystemClock.now() > year_2020);
    }

    #[test]
    fn manual_clock_counts() {
        let clock = ManualClock::new(7);
        assert_eq!((clock.now(), clock.now(), clock.peek()), (7, 8, 9));
        clock.set(100);
        assert_eq!(clock.now(), 100);
    }
}
