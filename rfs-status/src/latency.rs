//! A summary of recorded durations. No I/O, no locks, no clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A summary of recorded durations, in seconds. All but the count are 0 without durations.
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
}

impl Latency {
    /// Creates a summary. `percentile` returns the duration that a percentage does not exceed.
    pub fn new(count: u64, mean: Duration, percentile: impl Fn(f64) -> Duration) -> Latency {
        let at = |percent| percentile(percent).as_secs_f64();
        Latency {
            count,
            mean_seconds: mean.as_secs_f64(),
            p50_seconds: at(50.0),
            p99_seconds: at(99.0),
            max_seconds: at(100.0),
        }
    }

    /// Returns the sum of all durations in seconds.
    pub fn sum_seconds(&self) -> f64 {
        self.mean_seconds * self.count as f64
    }
}
