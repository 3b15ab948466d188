//! The shortest operation timeout in use, which says how often pollers check for overdue requests.
//!
//! # Concurrency
//! Any thread may call any method. Not a type of the model checker: no model changes a timeout.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The shortest timeout that requests of a session have had.
#[derive(Debug)]
pub(crate) struct ShortestTimeout(AtomicU64);

impl ShortestTimeout {
    pub(crate) fn new(timeout: Duration) -> ShortestTimeout {
        ShortestTimeout(AtomicU64::new(nanos(timeout)))
    }

    /// Records a timeout that requests have from now on. Returns true if none was as short. The
    /// caller then has to interrupt the threads that sleep until their next check.
    #[must_use]
    pub(crate) fn note(&self, timeout: Duration) -> bool {
        let timeout = nanos(timeout);
        // Sequentially consistent: a poller that misses the caller's interruption sees this value.
        timeout < self.0.fetch_min(timeout, Ordering::SeqCst)
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    /// Returns the time between two checks for overdue requests.
    pub(crate) fn check_interval(&self) -> Duration {
        // A timeout of zero must not make a poller spin.
        (self.get() / 2).max(Duration::from_millis(1))
    }
}

fn nanos(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shorter_timeout_changes_it() {
        let shortest = ShortestTimeout::new(Duration::from_secs(10));
        assert!(!shortest.note(Duration::from_secs(30)));
        assert_eq!((shortest.get(), shortest.check_interval().as_secs()), (Duration::from_secs(10), 5));
        assert!(shortest.note(Duration::from_millis(8)));
        assert!(!shortest.note(Duration::from_millis(8)));
        assert_eq!(shortest.check_interval(), Duration::from_millis(4));
        assert!(shortest.note(Duration::ZERO));
        assert_eq!(shortest.check_interval(), Duration::from_millis(1));
    }
}
