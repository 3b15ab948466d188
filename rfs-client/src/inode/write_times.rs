//! Write times of one inode, which this client publishes sparingly. No I/O, no locks, no clock.

/// Minimum interval of published write times of one inode, as on a local file system with a 250
/// Hz clock.
const GRANULARITY_NS: i64 = 4_000_000;

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
