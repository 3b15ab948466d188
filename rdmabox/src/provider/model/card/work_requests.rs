//! The card's cache of work requests, which is too small for many requests in flight.
//!
//! The card replaces entries at random. Of `n` requests in flight, `entries` are present, so a use
//! misses with probability `1 - entries / n`. The model charges each use its expected cost, and
//! counts whole misses, with the rest carried to the next use. So results repeat exactly.
//!
//! No I/O, no locks, no clock.

/// The cache, with the fraction of a miss that is not counted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkRequestCache {
    entries: u64,
    miss_ns: u64,
    carried: u64,
}

/// Misses per use are counted in millionths.
const MILLION: u64 = 1_000_000;

impl WorkRequestCache {
    pub(super) fn new(entries: u64, miss_ns: u64) -> WorkRequestCache {
        WorkRequestCache { entries, miss_ns, carried: 0 }
    }

    /// Uses an entry while `in_flight` requests are on the card. Returns the expected time of a
    /// fetch in ns, and the number of misses to count: 0 or 1.
    pub(super) fn miss(&mut self, in_flight: u64) -> (u64, u64) {
        let absent = in_flight.saturating_sub(self.entries);
        let millionths = absent.saturating_mul(MILLION) / in_flight.max(1);
        self.carried += millionths;
        let whole = self.carried / MILLION;
        self.carried %= MILLION;
        (self.miss_ns * millionths / MILLION, whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_fit_never_miss() {
        let mut cache = WorkRequestCache::new(64, 500);
        assert!((0..=64).all(|in_flight| cache.miss(in_flight) == (0, 0)));
    }

    #[test]
    fn half_of_the_uses_miss_with_twice_the_requests() {
        let mut cache = WorkRequestCache::new(64, 500);
        let (times, misses): (Vec<_>, Vec<_>) = (0..100).map(|_| cache.miss(128)).unzip();
        assert!(times.iter().all(|time| *time == 250));
        assert_eq!(misses.iter().sum::<u64>(), 50);
    }

    #[test]
    fn the_cost_never_falls_with_more_requests_and_never_exceeds_a_fetch() {
        let mut cache = WorkRequestCache::new(64, 500);
        let times: Vec<u64> = (0..10_000).map(|in_flight| cache.miss(in_flight).0).collect();
        assert!(times.is_sorted() && times.last() < Some(&500));
    }
}
