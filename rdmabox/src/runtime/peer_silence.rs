//! The time since the peer last completed a request.
//!
//! # Concurrency
//! Any thread may call it. The time is a relaxed atomic, because a check that misses the last
//! completion is repeated. The model checker does not see it: no model reads it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The end of the last silence, in microseconds since the beginning.
#[derive(Debug)]
pub(crate) struct PeerSilence {
    began: Instant,
    ended: AtomicU64,
}

impl PeerSilence {
    /// Begins a silence.
    pub(crate) fn new(now: Instant) -> PeerSilence {
        PeerSilence { began: now, ended: AtomicU64::new(0) }
    }

    fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    /// Ends the silence, because a request has completed. The next one begins.
    pub(crate) fn end(&self, now: Instant) {
        self.ended.store(self.micros(now), Ordering::Relaxed);
    }

    /// Returns the length of the silence.
    pub(crate) fn length(&self, now: Instant) -> Duration {
        Duration::from_micros(self.micros(now).saturating_sub(self.ended.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_counts_from_the_last_completion() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let silence = PeerSilence::new(start);
        assert_eq!(silence.length(after(7)), Duration::from_millis(7));
        silence.end(after(10));
        assert_eq!(silence.length(after(10)), Duration::ZERO);
        assert_eq!(silence.length(after(13)), Duration::from_millis(3));
        // A thread that has read the clock before that completion.
        assert_eq!(silence.length(after(9)), Duration::ZERO);
    }
}
