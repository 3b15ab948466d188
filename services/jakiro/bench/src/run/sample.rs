//! The result of a run: rates and latencies.
//!
//! # Concurrency
//! Plain values.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::peer::Fetches;

/// Longest latency that is told from others: one minute.
const MAX_LATENCY_NS: u64 = 60_000_000_000;

/// The counts of a run, of the machine or of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    latencies: Histogram<u64>,
    fetches: Fetches,
    duration: Duration,
}

impl Sample {
    pub(crate) fn new() -> Sample {
        let latencies = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("bounds that fit");
        Sample { latencies, fetches: Fetches::default(), duration: Duration::ZERO }
    }

    /// Records a request.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(MAX_LATENCY_NS));
    }

    /// Records READs of replies.
    pub(crate) fn fetched(&mut self, fetches: Fetches) {
        self.fetches = self.fetches + fetches;
    }

    /// Adds the requests of another thread.
    pub(crate) fn add(&mut self, other: &Sample) {
        self.latencies += &other.latencies;
        self.fetches = self.fetches + other.fetches;
    }

    /// Sets the length of the run.
    pub(crate) fn took(&mut self, duration: Duration) {
        self.duration = duration;
    }

    /// Returns the requests per second of all threads.
    pub(crate) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.duration.as_secs_f64()
    }

    /// Returns a percentile of the latencies in microseconds.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        self.latencies.value_at_percentile(percent) as f64 / 1000.0
    }

    /// Returns the mean latency in microseconds.
    pub(crate) fn mean(&self) -> f64 {
        self.latencies.mean() / 1000.0
    }

    /// Returns the READs per fetched reply that did not come too early. A reply takes one READ, and
    /// one more if it is longer than the fetch size. The result is 0 if no reply was fetched.
    pub(crate) fn reads_per_reply(&self) -> f64 {
        self.fetches.reads as f64 / self.fetches.replies.max(1) as f64
    }

    /// Returns the READs per request that came too early.
    pub(crate) fn early_reads(&self) -> f64 {
        self.fetches.early as f64 / self.latencies.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_are_those_of_all_threads() {
        let (mut sum, mut other) = (Sample::new(), Sample::new());
        (1..=100).for_each(|i| other.record(Duration::from_micros(i)));
        other.fetched(Fetches { replies: 100, reads: 150, early: 3 });
        sum.add(&other);
        sum.add(&other);
        sum.took(Duration::from_secs(2));
        assert_eq!((sum.rate(), sum.reads_per_reply(), sum.early_reads()), (100.0, 1.5, 0.03));
        assert!((49.0..51.1).contains(&sum.percentile(50.0)) && (50.0..51.0).contains(&sum.mean()));
    }
}
