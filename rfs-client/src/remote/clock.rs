//! Times on the server's clock.
//!
//! Clients stamp their writes themselves. So that the stamps fit among those of the server, a
//! client adds an offset to its local clock. It measures the offset when it attaches.

use std::time::{SystemTime, UNIX_EPOCH};

/// Minimum interval of published write times of one inode, as on a local file system with a 250
/// Hz clock.
const GRANULARITY_NS: i64 = 4_000_000;

/// Returns the local time in nanoseconds since 1970.
pub(crate) fn local_now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}

/// The server's clock as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerClock {
    offset: i64,
}

impl ServerClock {
    /// Estimates the offset from one exchange: local time of the request, server time, local time
    /// of the reply.
    ///
    /// A server time between the two local times means one common clock. Otherwise the offset takes
    /// the time of the request as the server's time. The client's stamps are then late by the
    /// latency of the request, never early, so no stamp is older than an earlier stamp of the
    /// server.
    pub(crate) fn from_exchange(sent: i64, server: i64, received: i64) -> ServerClock {
        let offset = if (sent..=received).contains(&server) { 0 } else { server.saturating_sub(sent) };
        ServerClock { offset }
    }

    /// Returns the current time of the server.
    pub(crate) fn now(self) -> i64 {
        self.at(local_now())
    }

    fn at(self, local: i64) -> i64 {
        local.saturating_add(self.offset)
    }
}

/// The last write time of one inode, and the time that the server knows.
#[derive(Debug, Default)]
pub(crate) struct WriteTimes {
    published: Option<i64>,
    pending: Option<i64>,
}

impl WriteTimes {
    /// Notes a write at `now`. Returns the time if it must be published at once; else it is
    /// pending.
    pub(crate) fn note(&mut self, now: i64) -> Option<i64> {
        let fresh = self.published.is_some_and(|p| (p..p.saturating_add(GRANULARITY_NS)).contains(&now));
        if fresh {
            self.pending = Some(now);
            return None;
        }
        self.published = Some(now);
        self.pending = None;
        Some(now)
    }

    /// Takes the pending time to publish it.
    pub(crate) fn take_pending(&mut self) -> Option<i64> {
        let pending = self.pending.take();
        if pending.is_some() {
            self.published = pending;
        }
        pending
    }

    /// Returns the pending time.
    pub(crate) fn pending(&self) -> Option<i64> {
        self.pending
    }

    /// Forgets all times, because the times were set by a call. The next write is published.
    pub(crate) fn reset(&mut self) {
        *self = WriteTimes::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_clock_needs_no_offset() {
        assert_eq!(ServerClock::from_exchange(100, 150, 200).at(1000), 1000);
    }

    #[test]
    fn a_foreign_clock_is_followed_and_stamps_are_never_early() {
        // The server's clock is 1000 ahead, and the server answers 30 after the request left.
        let clock = ServerClock::from_exchange(100, 1130, 160);
        assert_eq!(clock.at(200), 1230);
        assert!(clock.at(200) >= 200 + 1000);
        // The server's clock is behind.
        let clock = ServerClock::from_exchange(5000, 30, 5060);
        assert!(clock.at(6000) >= 1000);
    }

    #[test]
    fn the_first_write_is_published_and_the_next_ones_wait() {
        let mut times = WriteTimes::default();
        assert_eq!(times.note(10), Some(10));
        assert_eq!(times.note(11), None);
        assert_eq!(times.note(12), None);
        assert_eq!(times.take_pending(), Some(12));
        assert_eq!(times.take_pending(), None);
        assert_eq!(times.note(12 + GRANULARITY_NS), Some(12 + GRANULARITY_NS));
        assert_eq!(times.pending(), None);
    }

    #[test]
    fn after_a_reset_the_next_write_is_published() {
        let mut times = WriteTimes::default();
        times.note(10);
        times.note(11);
        times.reset();
        assert_eq!(times.pending(), None);
        assert_eq!(times.note(12), Some(12));
    }

    #[test]
    fn a_clock_that_steps_back_is_published() {
        let mut times = WriteTimes::default();
        times.note(1_000_000_000);
        assert_eq!(times.note(5), Some(5));
    }
}
