//! Lock-free latency histograms.
//!
//! Buckets are log-linear: eight buckets of equal width per power of two nanoseconds. A reported
//! value is the upper bound of a bucket, so it is at most 12.5 % above the true value and never
//! below it. Values below 16 ns are exact; values above 73 minutes share one bucket.
//!
//! # Concurrency
//! Any thread may record and read through `&self`. `hdrhistogram` would need `&mut self`, or a
//! recorder per thread and a rendezvous with all of them per read.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Buckets per power of two.
const SUB: u64 = 8;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Number of bits of the largest value with its own bucket, in nanoseconds.
const MAX_BITS: u32 = 42;
const BUCKETS: usize = bucket_of(u64::MAX) + 1;

/// Returns the bucket of a value.
const fn bucket_of(nanos: u64) -> usize {
    if nanos < SUB {
        return nanos as usize;
    }
    if nanos >> MAX_BITS != 0 {
        return bucket_of((1 << MAX_BITS) - 1);
    }
    let shift = nanos.ilog2() - SUB_BITS;
    // The leading bit of `nanos >> shift` adds eight, which skips the buckets of lower powers.
    (shift as u64 * SUB + (nanos >> shift)) as usize
}

/// Returns the largest value of a bucket.
const fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    ((bucket - shift * SUB + 1) << shift) - 1
}

/// Recorder of durations, for any thread. It has 2.5 KiB, and never allocates.
pub struct LatencyRecorder {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl LatencyRecorder {
    /// Records a duration with two relaxed atomic additions and no allocation.
    pub fn record(&self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the durations recorded so far. A concurrent recording may already be in the count
    /// but not in the mean.
    pub fn snapshot(&self) -> Histogram {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        Histogram::new(buckets, self.sum.load(Ordering::Relaxed))
    }
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        LatencyRecorder { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }
}

impl fmt::Debug for LatencyRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Recorded durations. Reported durations are at most 12.5 % above the true values and never
/// below, unless a method says otherwise.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Counts per bucket, up to the last non-empty bucket.
    buckets: Vec<u64>,
    count: u64,
    /// Sum in nanoseconds.
    sum: u64,
}

impl FromIterator<Duration> for Histogram {
    fn from_iter<T: IntoIterator<Item = Duration>>(durations: T) -> Histogram {
        let recorder = LatencyRecorder::default();
        durations.into_iter().for_each(|duration| recorder.record(duration));
        recorder.snapshot()
    }
}

impl Histogram {
    fn new(buckets: impl Iterator<Item = u64>, sum: u64) -> Histogram {
        let mut buckets: Vec<u64> = buckets.collect();
        let used = buckets.iter().rposition(|&count| count != 0).map_or(0, |last| last + 1);
        buckets.truncate(used);
        let count = buckets.iter().sum();
        Histogram { buckets, count, sum }
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the duration that `percent` percent of the durations do not exceed: 50.0 is the
    /// median, 99.9 excludes one in a thousand. Returns zero without durations, the minimum for 0
    /// or less, and the maximum for 100 or more.
    pub fn percentile(&self, percent: f64) -> Duration {
        // `next_down` prevents rounding from lifting an exact rank to the next.
        let rank = (percent * self.count as f64 / 100.0).next_down().ceil();
        let rank = (rank as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|&count| {
            seen += count;
            seen >= rank
        });
        Duration::from_nanos(bucket.map_or(0, upper_bound))
    }

    /// Returns the maximum; zero without durations.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.buckets.len().checked_sub(1).map_or(0, upper_bound))
    }

    /// Returns how many durations are in buckets that end at `limit` or below. No longer duration
    /// counts. A duration may be left out if `limit` exceeds it by less than 12.5 %.
    ///
    /// ```
    /// # use rdmabox::stats::Histogram;
    /// # use std::time::Duration;
    /// let times: Histogram = [2, 3, 50].map(Duration::from_micros).into_iter().collect();
    /// assert_eq!(times.count_up_to(Duration::from_micros(10)), 2);
    /// assert_eq!(times.count_up_to(Duration::MAX), times.count());
    /// ```
    pub fn count_up_to(&self, limit: Duration) -> u64 {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        // The last bucket also has all longer durations.
        let fits = |bucket: usize| match bucket == BUCKETS - 1 {
            true => limit == u64::MAX,
            false => upper_bound(bucket) <= limit,
        };
        self.buckets.iter().enumerate().take_while(|(bucket, _)| fits(*bucket)).map(|(_, count)| count).sum()
    }

    /// Returns the sum of the durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns the mean, rounded down to nanoseconds; zero without durations.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum.checked_div(self.count).unwrap_or(0))
    }

    /// Returns the union of both histograms.
    #[must_use]
    pub fn plus(&self, other: &Histogram) -> Histogram {
        let at = |histogram: &Histogram, bucket| histogram.buckets.get(bucket).copied().unwrap_or(0);
        let used = self.buckets.len().max(other.buckets.len());
        let buckets = (0..used).map(|bucket| at(self, bucket) + at(other, bucket));
        Histogram::new(buckets, self.sum.wrapping_add(other.sum))
    }

    /// Returns the durations recorded since `earlier`, a snapshot of the same recorder.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let before = earlier.buckets.iter().chain(std::iter::repeat(&0));
        let buckets = self.buckets.iter().zip(before).map(|(now, before)| now.saturating_sub(*before));
        Histogram::new(buckets, self.sum.saturating_sub(earlier.sum))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("mean", &self.mean())
            .field("p50", &self.percentile(50.0))
            .field("p99", &self.percentile(99.0))
            .field("max", &self.max())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(nanos: &[u64]) -> Histogram {
        let recorder = LatencyRecorder::default();
        nanos.iter().for_each(|&n| recorder.record(Duration::from_nanos(n)));
        recorder.snapshot()
    }

    #[test]
    fn buckets_are_adjacent() {
        let mut lower = 0;
        for bucket in 0..BUCKETS {
            let upper = upper_bound(bucket);
            assert_eq!((bucket_of(lower), bucket_of(upper)), (bucket, bucket));
            // The error bound: the bucket's width relative to its smallest value.
            assert!((upper - lower) * SUB <= lower, "{lower}..={upper}");
            lower = upper + 1;
        }
        assert_eq!(lower, 1 << MAX_BITS);
        assert_eq!((BUCKETS, bucket_of(lower), bucket_of(u64::MAX)), (320, 319, 319));
    }

    proptest! {
        #[test]
        fn a_sum_equals_one_recording_of_both(
            here in prop::collection::vec(0..1u64 << 40, 0..20),
            there in prop::collection::vec(0..1u64 << 20, 0..20),
        ) {
            let both = [&here[..], &there].concat();
            prop_assert_eq!(histogram(&here).plus(&histogram(&there)), histogram(&both));
        }
    }

    #[test]
    fn an_empty_histogram_reports_zeros() {
        let empty = histogram(&[]);
        assert_eq!((empty.count(), empty.max(), empty.mean()), (0, Duration::ZERO, Duration::ZERO));
        assert_eq!((empty.count_up_to(Duration::MAX), empty.sum()), (0, Duration::ZERO));
        assert_eq!(empty.percentile(99.0), Duration::ZERO);
        assert_eq!(empty, Histogram::default());
    }

    #[test]
    fn ranks_are_not_rounded_up() {
        // A thousand values, of which only the last is long: 99.9 % is the 999th.
        let mut nanos = vec![5; 999];
        nanos.push(15);
        let histogram = histogram(&nanos);
        let at = |percent| histogram.percentile(percent).as_nanos();
        assert_eq!([0.0, 50.0, 99.9, 99.91, 100.0].map(at), [5, 5, 5, 15, 15]);
        assert_eq!([-1.0, 1e9, f64::NAN].map(at), [5, 15, 5]);
        assert_eq!(histogram.mean().as_nanos(), 5);
    }

    #[test]
    fn extreme_durations_are_recorded() {
        let recorder = LatencyRecorder::default();
        recorder.record(Duration::MAX);
        recorder.record(Duration::ZERO);
        let histogram = recorder.snapshot();
        assert_eq!(histogram.percentile(1.0), Duration::ZERO);
        assert_eq!(histogram.max().as_secs(), 4398);
        let counts = [0, 4400, u64::MAX].map(|secs| histogram.count_up_to(Duration::from_secs(secs)));
        assert_eq!(counts, [1, 1, 2]);
    }

    #[test]
    fn concurrent_recordings_are_all_counted() {
        let recorder = LatencyRecorder::default();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let recorder = &recorder;
                scope.spawn(move || {
                    (0..10_000).for_each(|i| recorder.record(Duration::from_nanos(thread * 1000 + i % 7)));
                });
            }
        });
        let histogram = recorder.snapshot();
        assert_eq!(histogram.count(), 40_000);
        assert_eq!(histogram.mean().as_nanos(), 1502);
    }

    /// Returns times from nanoseconds to an hour, each magnitude equally likely.
    fn nanos() -> impl Strategy<Value = u64> {
        (0..MAX_BITS, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1) | 1 << bits >> 1)
    }

    proptest! {
        #[test]
        fn percentiles_exceed_those_of_a_sorted_list_by_at_most_an_eighth(
            mut values in prop::collection::vec(nanos(), 1..400),
            percents in prop::collection::vec(0.0..=100.0f64, 1..20),
        ) {
            let histogram = histogram(&values);
            values.sort_unstable();
            let near = |reported: Duration, exact: u64| {
                let reported = reported.as_nanos() as u64;
                exact <= reported && reported <= exact + exact / SUB
            };
            for percent in percents {
                // The smallest rank that covers the share, by definition.
                let covers = |rank: &usize| *rank as f64 * 100.0 >= percent * values.len() as f64;
                let rank = (1..=values.len()).find(covers).unwrap();
                prop_assert!(near(histogram.percentile(percent), values[rank - 1]), "{percent} %");
            }
            prop_assert!(near(histogram.max(), values[values.len() - 1]));
            prop_assert_eq!(histogram.percentile(100.0), histogram.max());
            prop_assert_eq!(histogram.count(), values.len() as u64);
            let mean = values.iter().map(|&v| u128::from(v)).sum::<u128>() / values.len() as u128;
            prop_assert_eq!(histogram.mean().as_nanos(), mean);
        }

        #[test]
        fn a_count_has_no_longer_durations_and_misses_only_near_ones(
            values in prop::collection::vec(nanos(), 1..200),
            limit in nanos(),
        ) {
            let count = histogram(&values).count_up_to(Duration::from_nanos(limit));
            let up_to = |limit: u64| values.iter().filter(|value| **value <= limit).count() as u64;
            prop_assert!(count <= up_to(limit));
            prop_assert!(count >= up_to(limit - limit / SUB), "{count}");
        }

        #[test]
        fn a_difference_has_the_recordings_in_between(
            before in prop::collection::vec(nanos(), 0..100),
            after in prop::collection::vec(nanos(), 0..100),
        ) {
            let recorder = LatencyRecorder::default();
            before.iter().for_each(|&n| recorder.record(Duration::from_nanos(n)));
            let earlier = recorder.snapshot();
            after.iter().for_each(|&n| recorder.record(Duration::from_nanos(n)));
            prop_assert_eq!(recorder.snapshot().since(&earlier), histogram(&after));
        }
    }
}
