//! A link that sends bytes at a rate, first come, first served. No I/O, no locks, no clock.
//!
//! An idle link saves up to `burst` bytes, which it sends at once. This is how HTB limits the links
//! of the measured stores. A link of a network has no burst.

use crate::event::{Nanos, SECOND};

/// A link in one direction.
#[derive(Clone, Debug)]
pub struct Link {
    /// Bytes per second.
    rate: f64,
    /// Time that the burst takes at the rate, in nanoseconds.
    saved: f64,
    /// Time at which all accepted bytes are sent, if the link had not been idle before.
    free: f64,
    sent: u64,
}

impl Link {
    /// Returns an idle link of `rate` bytes per second, which must be positive.
    pub fn new(rate: f64, burst: u64) -> Self {
        Self { rate, saved: burst as f64 / rate * SECOND as f64, free: f64::MIN, sent: 0 }
    }

    /// Accepts bytes at a time that is not before the last one. Returns the time at which the last
    /// byte is sent.
    pub fn send(&mut self, now: Nanos, bytes: u64) -> Nanos {
        let now = now as f64;
        self.sent += bytes;
        self.free = self.free.max(now - self.saved) + bytes as f64 / self.rate * SECOND as f64;
        // Simulated runs last for seconds: a float has whole nanoseconds of months.
        self.free.max(now).round() as Nanos
    }

    /// Returns the bytes that were accepted.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a store that serves more, or less, than its rate.
    #[test]
    fn a_busy_link_sends_at_its_rate() {
        let mut link = Link::new(1e6, 0);
        assert_eq!(link.send(0, 1000), 1_000_000);
        assert_eq!(link.send(0, 1000), 2_000_000);
        assert_eq!(link.send(500_000, 1000), 3_000_000);
        assert_eq!(link.sent(), 3000);
    }

    /// Catches time that an idle link saves without a burst, and a burst without a limit.
    #[test]
    fn an_idle_link_saves_its_burst_only() {
        let mut plain = Link::new(1e6, 0);
        plain.send(0, 1000);
        assert_eq!(plain.send(9_000_000, 1000), 10_000_000);
        let mut saves = Link::new(1e6, 500);
        assert_eq!(saves.send(9_000_000, 500), 9_000_000, "at once");
        assert_eq!(saves.send(9_000_000, 1000), 10_000_000, "at the rate from then on");
    }
}
