//! A summary of recorded durations. No I/O, no locks, no clock.

use std::time::Duration;

use rdmabox::stats::Histogram;
use serde::{Deserialize, Serialize};

use crate::text::duration;

/// Upper bounds of the buckets of a metric, in seconds: 1, 2 and 5 of each magnitude from 1 us to
/// 10 s.
pub const BUCKETS: [f64; 22] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0,
];

/// A summary of recorded durations, in seconds. All but the counts are 0 without durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Number of durations.
    pub count: u64,
    /// Their mean.
    pub mean_seconds: f64,
    /// The duration that half of them do not exceed.
    pub p50_seconds: f64,
    /// The duration that 99 % of them do not exceed.
    pub p99_seconds: f64,
    /// The longest.
    pub max_seconds: f64,
    /// Their sum. Only for metrics.
    #[serde(skip)]
    pub sum_seconds: f64,
    /// For each of [`BUCKETS`], the number of durations up to it. Only for metrics.
    #[serde(skip)]
    pub counts_up_to: [u64; BUCKETS.len()],
}

/// Heads of the columns that [`Latency::cells`] fills.
pub const HEADS: [&str; 5] = [">number", ">mean", ">median", ">99 %", ">longest"];

impl Latency {
    /// Returns the cells of a table's row.
    pub fn cells(&self) -> [String; HEADS.len()] {
        let [mean, median, most, longest] =
            [self.mean_seconds, self.p50_seconds, self.p99_seconds, self.max_seconds].map(duration);
        [self.count.to_string(), mean, median, most, longest]
    }

    /// Creates a summary of `count` durations with a sum. `percentile` returns the duration that a
    /// percentage does not exceed, and `count_up_to` the number of durations up to a limit.
    pub(crate) fn new(
        (count, sum): (u64, Duration),
        percentile: impl Fn(f64) -> Duration,
        count_up_to: impl Fn(Duration) -> u64,
    ) -> Latency {
        let at = |percent| percentile(percent).as_secs_f64();
        Latency {
            count,
            mean_seconds: if count == 0 { 0.0 } else { sum.as_secs_f64() / count as f64 },
            p50_seconds: at(50.0),
            p99_seconds: at(99.0),
            max_seconds: at(100.0),
            sum_seconds: sum.as_secs_f64(),
            counts_up_to: BUCKETS.map(|bound| count_up_to(Duration::from_secs_f64(bound))),
        }
    }
}

impl From<&Histogram> for Latency {
    fn from(times: &Histogram) -> Latency {
        let (percentile, up_to) = (|percent| times.percentile(percent), |limit| times.count_up_to(limit));
        Latency::new((times.count(), times.sum()), percentile, up_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a summary that takes one figure of a histogram for another.
    #[test]
    fn a_summary_has_the_figures_of_its_histogram() {
        let times: Histogram = [1, 2, 4].map(Duration::from_millis).into_iter().collect();
        let latency = Latency::from(&times);
        assert_eq!((latency.count, latency.sum_seconds), (3, 0.007));
        assert_eq!(latency.max_seconds, times.percentile(100.0).as_secs_f64());
        assert!(latency.p50_seconds < latency.p99_seconds);
        assert_eq!((latency.counts_up_to[0], latency.counts_up_to[BUCKETS.len() - 1]), (0, 3));
        assert_eq!(Latency::from(&Histogram::from_iter([])), Latency::default());
    }

    #[test]
    fn bounds_grow_and_counts_follow_them() {
        assert!(BUCKETS.windows(2).all(|pair| pair[0] < pair[1]));
        let latency = Latency::new(
            (2, Duration::from_millis(3)),
            |percent| Duration::from_millis(if percent > 50.0 { 2 } else { 1 }),
            |limit| {
                u64::from(limit >= Duration::from_millis(1)) + u64::from(limit >= Duration::from_millis(2))
            },
        );
        assert_eq!((latency.mean_seconds, latency.p50_seconds, latency.max_seconds), (0.0015, 0.001, 0.002));
        let at = |bound: f64| latency.counts_up_to[BUCKETS.iter().position(|one| *one == bound).unwrap()];
        assert_eq!([5e-4, 1e-3, 2e-3, 10.0].map(at), [0, 1, 2, 2]);
        assert_eq!(Latency::new((0, Duration::ZERO), |_| Duration::ZERO, |_| 0), Latency::default());
    }
}
