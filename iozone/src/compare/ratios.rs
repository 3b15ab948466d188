//! Medians of the rounds, and ratios of medians. No I/O, no locks, no clock.

use measure::statistics::{median, ratio, spread};

use super::{
    column::{Column, Metric, Pattern, Reading},
    report::Comparison,
};
use crate::sample::Latency;

/// Returns the median of each value, over the rounds that have the value.
pub fn median_reading(rounds: &[Reading]) -> Reading {
    let of = |number: &dyn Fn(&Reading) -> Option<f64>| {
        median(&rounds.iter().filter_map(number).collect::<Vec<_>>())
    };
    Reading {
        mib_per_s: of(&|reading| Some(reading.mib_per_s)).unwrap_or(0.0),
        latency: Latency::median(&rounds.iter().filter_map(|reading| reading.latency).collect::<Vec<_>>()),
        cpu_s_per_gib: of(&|reading| reading.cpu_s_per_gib),
        caller_s_per_gib: of(&|reading| reading.caller_s_per_gib),
    }
}

/// Returns the spread of the throughputs of the rounds.
pub fn throughput_spread(rounds: &[Reading]) -> Option<f64> {
    spread(&rounds.iter().map(|reading| reading.mib_per_s).collect::<Vec<_>>())
}

impl Comparison {
    /// Returns a median; `None` if it was not measured.
    pub fn median(&self, target: &str, column: Column, metric: Metric) -> Option<f64> {
        let series = self.results.iter().find(|s| s.target == target && s.column == column)?;
        metric.of(&series.median)
    }

    /// Returns the median of `of` divided by the median of `to`.
    pub fn ratio(&self, of: &str, to: &str, column: Column, metric: Metric) -> Option<f64> {
        ratio(self.median(of, column, metric)?, self.median(to, column, metric)?)
    }

    /// Returns all columns that any target has, in order.
    pub fn columns(&self) -> Vec<Column> {
        let mut columns: Vec<Column> = self.results.iter().map(|series| series.column).collect();
        columns.sort_unstable_by_key(|column| (is_direct(column), column.size, column.pattern));
        columns.dedup();
        columns
    }
}

fn is_direct(column: &Column) -> bool {
    matches!(column.pattern, Pattern::Direct(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{compare::report::tests::example, sample::Phase};

    #[test]
    fn medians_are_taken_number_by_number() {
        let reading = |mib_per_s, p50, cpu| Reading {
            mib_per_s,
            latency: Some(Latency { p50, p99: 7.0, p999: 8.0 }),
            cpu_s_per_gib: cpu,
            caller_s_per_gib: None,
        };
        let rounds = [reading(1.0, 9.0, Some(4.0)), reading(5.0, 1.0, None), reading(2.0, 5.0, Some(6.0))];
        assert_eq!(median_reading(&rounds), reading(2.0, 5.0, Some(5.0)));
        assert_eq!(throughput_spread(&rounds), Some(2.0));
        assert_eq!(median_reading(&[]), Reading::default());
    }

    #[test]
    fn ratios_are_of_medians() {
        let comparison = example();
        let column = Column { pattern: Pattern::Iozone(Phase::Write), size: 4096 };
        assert_eq!(comparison.ratio("shm", "null", column, Metric::Throughput), Some(0.5));
        assert_eq!(comparison.ratio("shm", "glusterfs", column, Metric::Throughput), None);
        assert_eq!(comparison.ratio("shm", "null", column, Metric::P50), None);
    }

    #[test]
    fn columns_are_in_the_order_of_tables() {
        let columns = example().columns();
        assert_eq!(columns.len(), 6 + 4);
        assert!(columns[..6].iter().all(|column| matches!(column.pattern, Pattern::Iozone(_))));
    }
}
