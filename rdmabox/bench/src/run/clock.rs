//! The clock that measures requests.
//!
//! Reading the system clock takes as long as an 8-byte READ of mapped memory, and each latency
//! includes one reading. If the processor has `constant_tsc`, its counter is read instead, in a
//! third of the time.

/// A clock. All clocks of a process have the same time base.
#[derive(Clone, Debug, Default)]
pub struct Clock(quanta::Clock);

/// A point in time, in units of the clock.
#[derive(Clone, Copy, Debug)]
pub struct Stamp(u64);

impl Clock {
    /// Returns a clock. The first call in a process calibrates the counter, which takes up to 0.2
    /// s.
    pub fn new() -> Clock {
        Clock::default()
    }

    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Stamp {
        Stamp(self.0.raw())
    }

    /// Returns the nanoseconds between two points in time.
    #[inline]
    pub fn ns(&self, from: Stamp, to: Stamp) -> u64 {
        self.0.delta_as_nanos(from.0, to.0)
    }
}
