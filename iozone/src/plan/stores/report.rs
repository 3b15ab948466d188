//! The result as data. `pool/sim` reads its JSON. No I/O, no locks, no clock.

use serde::{Deserialize, Serialize};

use super::{
    case::{Case, Wanted},
    meter::{Column, Reading},
    options::Options,
};
use crate::{
    harness::Measured,
    load::Pattern,
    report::{Setting, command},
    sample::ratio,
    target::Pool,
};

/// Version of the JSON format.
const FORMAT: u32 = 1;

/// A measured run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format.
    pub format: u32,
    /// Circumstances of the run.
    #[serde(flatten)]
    pub setting: Setting,
    /// The program's own command line.
    pub command: String,
    /// Describes links and files.
    pub about: String,
    /// Complete rounds.
    pub rounds: u32,
    /// Rate of a store's link in MB/s.
    pub link_mb_per_s: u64,
    /// Rate of a store's link for reads of 4 KiB, in MB/s.
    pub block_link_mb_per_s: u64,
    /// Length of the pieces of files in bytes; `None` for the server's default.
    pub stripe_unit: Option<u64>,
    /// Numbers of stores.
    pub stores: Vec<u64>,
    /// A row for each case and pattern.
    pub rows: Vec<Row>,
}

/// A case and a pattern, over all numbers of stores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Files and clients.
    pub case: Case,
    /// Pattern of the requests.
    pub pattern: Pattern,
    /// The points that were measured, by number of stores.
    pub points: Vec<Point>,
}

/// A row at one number of stores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of stores.
    pub stores: u64,
    /// Medians.
    pub median: Reading,
    /// Readings of the rounds.
    pub rounds: Vec<Reading>,
    /// The value that the requirement concerns, relative to one store: the rate, or the median
    /// latency.
    pub ratio: Option<f64>,
    /// The requirement.
    pub wanted: Option<Wanted>,
    /// True if the requirement is met; `None` without a requirement.
    pub met: Option<bool>,
}

impl Report {
    /// Returns the report of measured values.
    pub fn new(setting: Setting, options: &Options, measured: &Measured<Column, Reading>) -> Self {
        let stores = options.counts();
        let cases = options.chosen_cases();
        let columns = cases.iter().flat_map(|case| case.patterns().iter().map(|pattern| (*case, *pattern)));
        let rows = columns.map(|(case, pattern)| row(Column { case, pattern }, &stores, measured)).collect();
        Self {
            format: FORMAT,
            setting,
            command: command(),
            about: options.describe(),
            rounds: measured.rounds,
            link_mb_per_s: options.link,
            block_link_mb_per_s: options.block_link,
            stripe_unit: options.stripe_unit,
            stores,
            rows,
        }
    }

    /// Returns true if all requirements are met.
    pub fn passes(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.points).all(|point| point.met != Some(false))
    }
}

impl Row {
    /// Returns the point at a number of stores.
    pub fn at(&self, stores: u64) -> Option<&Point> {
        self.points.iter().find(|point| point.stores == stores)
    }
}

fn row(column: Column, stores: &[u64], measured: &Measured<Column, Reading>) -> Row {
    let of = |stores: u64| {
        let name = Pool::name_of(stores);
        measured.series.iter().find(|series| series.target == name && series.column == column)
    };
    let one = of(1).map(|series| series.median);
    let point = |&stores: &u64| {
        let series = of(stores)?;
        let wanted = column.case.wanted(column.pattern, stores);
        let ratio = one.and_then(|one| match wanted {
            Some(Wanted::Latency(_)) => ratio(series.median.latency.p50, one.latency.p50),
            _ => ratio(series.median.mib_per_s, one.mib_per_s),
        });
        Some(Point {
            stores,
            median: series.median,
            rounds: series.rounds.clone(),
            ratio,
            wanted,
            // A ratio that could not be measured is not met.
            met: wanted.map(|wanted| ratio.is_some_and(|ratio| wanted.is_met(ratio))),
        })
    };
    Row { case: column.case, pattern: column.pattern, points: stores.iter().filter_map(point).collect() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{cli::parse, harness::Series, report::tests::setting, sample::Latency};

    /// Returns a report in which rates grow by 0.95 for each store, and latencies by 0.1.
    pub(in super::super) fn example() -> Report {
        let options: Options = parse(&[]).unwrap();
        let mut series = Vec::new();
        for case in Case::ALL {
            for &pattern in case.patterns() {
                for stores in options.counts().into_iter().filter(|stores| case.has(*stores)) {
                    let grown = (stores - 1) as f64;
                    let latency = Latency { p50: 20.0 * (1.0 + 0.1 * grown), ..Latency::default() };
                    let reading = Reading { mib_per_s: 90.0 * (1.0 + 0.95 * grown), latency };
                    series.push(Series::new(
                        Pool::name_of(stores),
                        Column { case, pattern },
                        vec![reading; 3],
                    ));
                }
            }
        }
        let measured = Measured { series, targets: vec![], rounds: 3, log: String::new() };
        Report {
            command: "iozone/run --scaling=stores".into(),
            ..Report::new(setting(), &options, &measured)
        }
    }

    /// Catches a latency that is judged by its rate, and a point of another number of stores.
    #[test]
    fn rates_and_latencies_are_judged_by_their_own_ratios() {
        let report = example();
        let row = |case, pattern| {
            report.rows.iter().find(|row| (row.case, row.pattern) == (case, pattern)).expect("a row")
        };
        let met = |row: &Row, stores| row.at(stores).and_then(|point| point.met);
        let write = row(Case::OneFile, Pattern::Write);
        assert_eq!((met(write, 1), met(write, 2), met(write, 4)), (None, Some(true), Some(true)));
        assert!((write.at(4).unwrap().ratio.unwrap() - 3.85).abs() < 1e-9);
        let small = row(Case::Loopback, Pattern::RandomRead);
        assert_eq!((met(small, 2), small.at(4)), (Some(false), None));
        assert!((small.at(2).unwrap().ratio.unwrap() - 1.1).abs() < 1e-9);
        assert!(!report.passes());
    }

    /// Catches a run without the reference that passes.
    #[test]
    fn a_ratio_that_is_missing_is_not_met() {
        let options: Options = parse(&[]).unwrap();
        let column = Column { case: Case::Blocks, pattern: Pattern::RandomRead };
        let series = vec![Series::new(Pool::name_of(2), column, vec![Reading::default()])];
        let measured = Measured { series, targets: vec![], rounds: 1, log: String::new() };
        let report = Report::new(setting(), &options, &measured);
        assert!(!report.passes());
    }

    #[test]
    fn a_report_reads_back() {
        let report = example();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
