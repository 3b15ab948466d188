//! Latencies of requests, and their transfer from a child to its parent.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Error, Result, sample::Latency};

/// Maximum recorded latency. Longer latencies count as this one.
const MAX_LATENCY: Duration = Duration::from_secs(100);

/// Latencies of requests, with three significant digits.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

/// The results of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Seconds from the start of the threads to the end of the last thread.
    pub seconds: f64,
    /// Number of requests.
    pub operations: u64,
    /// Latency of the requests.
    pub latency: Latency,
}

impl Times {
    /// Returns an empty record.
    pub fn new() -> Result<Self> {
        let longest = u64::try_from(MAX_LATENCY.as_nanos()).unwrap_or(u64::MAX);
        let made = Histogram::new_with_bounds(1, longest, 3);
        made.map(Self).map_err(|err| Error::Usage(format!("times of requests: {err}")))
    }

    /// Records one request.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Merges the records.
    pub fn sum(all: impl IntoIterator<Item = Self>) -> Result<Self> {
        let mut sum = Self::new()?;
        for times in all {
            // All records have the same bounds.
            sum.0.add(times.0).map_err(|err| Error::Usage(format!("times of requests: {err}")))?;
        }
        Ok(sum)
    }

    /// Returns the results, given the duration of the load.
    pub fn done(&self, seconds: f64) -> Done {
        let us = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        let latency = Latency { p50: us(0.5), p99: us(0.99), p999: us(0.999) };
        Done { seconds, operations: self.0.len(), latency }
    }
}

/// Encodes a value as one line of output.
pub fn line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|err| wrong(&err))
}

/// Decodes a line of output.
pub fn read<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).map_err(|err| wrong(&err))
}

fn wrong(what: &impl ToString) -> Error {
    Error::Parse { program: "the load".into(), what: what.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_several_threads_are_one_distribution() {
        let mut threads = [Times::new().unwrap(), Times::new().unwrap()];
        for us in 1..=1000 {
            threads[us as usize % 2].record(Duration::from_micros(us));
        }
        let done = Times::sum(threads).unwrap().done(2.0);
        assert_eq!((done.seconds, done.operations), (2.0, 1000));
        let near = |value: f64, exact: f64| (value / exact - 1.0).abs() < 0.002;
        let Latency { p50, p99, p999 } = done.latency;
        assert!(near(p50, 500.0) && near(p99, 990.0) && near(p999, 999.0), "{done:?}");
    }

    #[test]
    fn latencies_above_the_maximum_are_recorded_as_the_maximum() {
        let mut times = Times::new().unwrap();
        times.record(Duration::ZERO);
        times.record(Duration::MAX);
        assert_eq!(times.done(0.0).operations, 2);
        assert!(times.done(0.0).latency.p999 >= 99e6);
        assert_eq!(Times::new().unwrap().done(1.0).latency, Latency::default());
    }

    #[test]
    fn a_line_reads_back() {
        let done = Times::new().unwrap().done(1.5);
        assert_eq!(read::<Done>(&line(&done).unwrap()).unwrap(), done);
        assert!(read::<Done>("nothing").is_err());
    }
}
