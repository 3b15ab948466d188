//! Times on the server's clock.
//!
//! Clients stamp their writes themselves. So that the stamps fit among those of the server, a
//! client adds an offset to its local clock. It measures the offset when it attaches.

use std::time::{SystemTime, UNIX_EPOCH};

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
    /// latency of the request, never early. So no stamp is older than an earlier stamp of the
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
}
