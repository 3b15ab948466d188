//! The measurements of a worker. No allocation during the run.

use std::{sync::Arc, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{
    clock::{Clock, Stamp},
    window::Window,
};

/// Maximum recorded latency in nanoseconds: one minute. Longer latencies count as this one.
const MAX_NS: u64 = 60_000_000_000;
/// Number of significant digits of a recorded latency.
const DIGITS: u8 = 3;

/// Latencies below this number of nanoseconds have a counter each.
const SHORT: usize = 2048;

/// Latencies and counts of one thread, or of several merged.
#[derive(Clone, Debug)]
pub struct Record {
    latency_ns: Histogram<u64>,
    /// Number of requests per latency below [`SHORT`] nanoseconds. Faster than the histogram, and
    /// exact.
    short: Box<[u64; SHORT]>,
    clock: Clock,
    /// Nanoseconds of the clock per recorded nanosecond.
    dilation: u64,
    /// The measured part of the run, if the load does not pause before it. Nothing else counts.
    window: Option<Arc<Window>>,
    /// Requests that completed.
    pub ops: u64,
    /// Compare-and-swaps that took place.
    pub swapped: u64,
    /// Idle gaps between bursts.
    pub gaps: u64,
}

impl Record {
    /// Returns an empty record.
    pub fn new() -> Record {
        Record::dilated(1)
    }

    /// Returns an empty record of latencies whose times are divided by `dilation`.
    pub fn dilated(dilation: u32) -> Record {
        let latency_ns =
            Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("these constants are valid bounds");
        Record {
            latency_ns,
            short: Box::new([0; SHORT]),
            clock: Clock::new(),
            dilation: u64::from(dilation.max(1)),
            window: None,
            ops: 0,
            swapped: 0,
            gaps: 0,
        }
    }

    /// Returns this record, for the completions in `window` only.
    #[must_use]
    pub fn within(self, window: Option<Arc<Window>>) -> Record {
        Record { window, ..self }
    }

    fn counts(&self) -> bool {
        self.window.as_ref().is_none_or(|window| window.is_open())
    }

    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Stamp {
        self.clock.now()
    }

    /// Records `count` requests that began and completed together.
    #[inline]
    pub fn completed(&mut self, count: u64, began: Stamp, over: Stamp) {
        if self.counts() {
            self.took(count, self.clock.ns(began, over) / self.dilation);
        }
    }

    /// Records a request that no thread waited for, so that it has no latency.
    pub fn ended(&mut self) {
        self.ops += u64::from(self.counts());
    }

    /// Records an idle gap.
    pub fn idled(&mut self) {
        self.gaps += u64::from(self.counts());
    }

    fn took(&mut self, count: u64, ns: u64) {
        self.ops += count;
        match self.short.get_mut(ns as usize) {
            Some(so_long) => *so_long += count,
            None => self.latency_ns.saturating_record_n(ns, count),
        }
    }

    /// Clears the record.
    pub fn reset(&mut self) {
        self.latency_ns.reset();
        self.short.fill(0);
        (self.ops, self.swapped, self.gaps) = (0, 0, 0);
    }

    /// Adds the measurements of `other`.
    pub fn add(&mut self, other: &Record) {
        // Both histograms have the same bounds, so no value is out of range.
        let added = self.latency_ns.add(&other.latency_ns);
        debug_assert!(added.is_ok());
        self.short.iter_mut().zip(other.short.iter()).for_each(|(own, more)| *own += more);
        self.ops += other.ops;
        self.swapped += other.swapped;
        self.gaps += other.gaps;
    }

    /// Returns the latencies.
    pub fn latency(&self) -> Latency {
        let us = |ns: u64| ns as f64 / 1000.0;
        let mut all = self.latency_ns.clone();
        for (ns, count) in (0..).zip(self.short.iter()).filter(|(_, count)| **count > 0) {
            // The histogram cannot record zero.
            all.saturating_record_n(u64::max(ns, 1), *count);
        }
        let at = |quantile| us(all.value_at_quantile(quantile));
        Latency {
            mean_us: all.mean() / 1000.0,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(all.max()),
        }
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

/// Latencies in microseconds, with three significant digits. Measured from before the submission
/// until the submitter has seen the completion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Largest.
    pub max_us: f64,
}

/// Latencies in microseconds as the runtime records them, from submission to completion. They
/// exceed the true values by at most 12.5 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RuntimeLatency {
    /// Number of recorded latencies. Requests that are submitted together count once.
    pub count: u64,
    /// The same statistics as of the submitter.
    #[serde(flatten)]
    pub latency: Latency,
}

impl RuntimeLatency {
    /// Summarizes a histogram of times that are divided by `dilation`; `None` if it is empty.
    pub fn of(histogram: &rdmabox::stats::Histogram, dilation: u32) -> Option<RuntimeLatency> {
        let us = |latency: Duration| latency.as_nanos() as f64 / 1000.0 / f64::from(dilation.max(1));
        let at = |percent| us(histogram.percentile(percent));
        let latency = Latency {
            mean_us: us(histogram.mean()),
            p50_us: at(50.0),
            p99_us: at(99.0),
            p999_us: at(99.9),
            max_us: us(histogram.max()),
        };
        (histogram.count() > 0).then_some(RuntimeLatency { count: histogram.count(), latency })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_merged_threads() {
        let (mut one, mut two) = (Record::new(), Record::new());
        one.took(990, 10_000);
        two.took(9, 100_000);
        two.took(1, 1_000_000);
        two.swapped = 3;
        one.add(&two);
        let latency = one.latency();
        let near = |value: f64, expected: f64| (value - expected).abs() <= expected / 1000.0;
        assert_eq!((one.ops, one.swapped), (1000, 3));
        assert!(near(latency.p50_us, 10.0) && near(latency.p99_us, 10.0), "{latency:?}");
        assert!(near(latency.p999_us, 100.0) && near(latency.max_us, 1000.0), "{latency:?}");
        assert!(near(latency.mean_us, 11.8), "{latency:?}");
    }

    #[test]
    fn latencies_of_the_runtime_are_summarized() {
        assert_eq!(RuntimeLatency::of(&rdmabox::stats::Histogram::default(), 1), None);
        let durations = [10; 99].into_iter().chain([14]).map(Duration::from_nanos);
        let latency = Latency { mean_us: 0.010, p50_us: 0.010, p99_us: 0.010, p999_us: 0.014, max_us: 0.014 };
        let histogram = durations.collect();
        assert_eq!(RuntimeLatency::of(&histogram, 1), Some(RuntimeLatency { count: 100, latency }));
        let of_model = RuntimeLatency::of(&histogram, 10).map(|summary| summary.latency.p50_us);
        assert_eq!(of_model, Some(0.001));
    }

    /// Catches a warm-up that counts, and completions after the end of the measured part.
    #[test]
    fn only_completions_in_the_window_count() {
        let window = Arc::new(Window::default());
        let mut record = Record::new().within(Some(Arc::clone(&window)));
        let mut complete = || {
            let began = record.now();
            record.completed(2, began, record.now());
            record.ended();
            record.idled();
            (record.ops, record.gaps)
        };
        assert_eq!(complete(), (0, 0));
        window.open();
        assert_eq!(complete(), (3, 1));
        window.close();
        assert_eq!(complete(), (3, 1));
    }

    #[test]
    fn forgotten_and_out_of_range() {
        let mut record = Record::new();
        record.took(1, u64::MAX);
        assert!(record.latency().max_us >= 60_000_000.0);
        record.reset();
        record.took(1, 0);
        assert_eq!((record.ops, record.latency().max_us), (1, 0.001));
    }
}
