//! The clock that requests are timed with.
//!
//! A look at the system's clock takes as long as an 8-byte READ on mapped memory, and each latency contains one. The
//! processor's own counter takes a third of that, where it is fit for it (`constant_tsc`); elsewhere it is the system's.

/// A clock. All of them agree.
#[derive(Clone, Debug, Default)]
pub struct Clock(quanta::Clock);

/// A point in time, as the clock counts.
#[derive(Clone, Copy, Debug)]
pub struct Stamp(u64);

impl Clock {
    /// One; the first of a process finds out how fast the counter runs, which takes up to 0.2 s.
    pub fn new() -> Clock {
        Clock::default()
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Stamp {
        Stamp(self.0.raw())
    }

    /// Nanoseconds from one point in time to a later one.
    #[inline]
    pub fn ns(&self, from: Stamp, to: Stamp) -> u64 {
        self.0.delta_as_nanos(from.0, to.0)
    }
}
