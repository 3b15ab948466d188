//! The server's wall clock, which tests can replace.
//!
//! Wall-clock time may jump, so it does not measure durations.
//!
//! # Concurrency
//! Any thread.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// A source of times.
pub trait Clock: Send + Sync + 'static {
    /// Returns nanoseconds since 1970.
    fn now(&self) -> i64;
}

/// The system's real-time clock.
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

/// A clock for tests: each reading advances it by one nanosecond, so that no two times are equal.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Returns a clock whose first reading is `start`.
    pub fn new(start: i64) -> ManualClock {
        ManualClock(AtomicI64::new(start))
    }

    /// Returns the time of the next reading.
    pub fn peek(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the clock.
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
