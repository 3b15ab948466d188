//! How long requests took, and how a child tells its parent.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Error, Result, sample::Latency};

/// Longer ones count as so long.
const LONGEST: Duration = Duration::from_secs(100);

/// Times of requests, to three digits.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

/// What a load has done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// From the start of its threads to the end of the last one.
    pub seconds: f64,
    /// Requests.
    pub operations: u64,
    /// Of each request.
    pub latency: Latency,
}

impl Times {
    /// None yet.
    pub fn new() -> Result<Self> {
        let longest = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX);
        let made = Histogram::new_with_bounds(1, longest, 3);
        made.map(Self).map_err(|err| Error::Usage(format!("times of requests: {err}")))
    }

    /// One more.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Those of all together.
    pub fn sum(all: impl IntoIterator<Item = Self>) -> Result<Self> {
        let mut sum = Self::new()?;
        for times in all {
            // They have the same bounds.
            sum.0.add(times.0).map_err(|err| Error::Usage(format!("times of requests: {err}")))?;
        }
        Ok(sum)
    }

    /// With the time that all of it took.
    pub fn done(&self, seconds: f64) -> Done {
        let us = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        let latency = Latency { p50: us(0.5), p99: us(0.99), p999: us(0.999) };
        Done { seconds, operations: self.0.len(), latency }
    }
}

/// A line of a child's output.
pub fn line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|err| wrong(&err))
}

/// What such a line says.
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
    fn absurd_times_fit() {
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
