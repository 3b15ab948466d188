//! Ratios of medians. No I/O, no locks, no clock.

use super::report::Comparison;
use crate::{
    engine::job::{Column, Metric, Pattern},
    sample::ratio,
};

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
    use crate::{plan::compare::report::tests::example, sample::Phase};

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
