//! Compares the model with measured processes. No I/O, no locks, no clock.
//!
//! `iozone/run --scaling=stores` writes a report with the rates of 1 to 4 stores. The constants of
//! the model come from the rows over loopback and from the rate of the links. The rows with limited
//! links are not used for constants: they are compared with predictions of the model.

use serde::Deserialize;

use crate::{
    event::{Nanos, SECOND},
    model::{Model, ModelError, Rates, Requests, Shape},
    placement::Placement,
    run::run,
};

/// Largest accepted difference between the model and the processes.
pub const TOLERANCE: f64 = 0.2;
/// Part of a link's bytes that is data: 1448 of 1514 bytes of a segment. The rest is the headers of
/// Ethernet, IP and TCP with its time stamps. HTB counts the headers of each segment.
pub const DATA_SHARE: f64 = 1448.0 / 1514.0;
/// Bytes that HTB lets an idle link send at once in the measured network.
pub const MEASURED_BURST: u64 = 64 << 10;

/// Length of the pieces of files if a report has none: the server's default (`--stripe-unit`).
pub const SERVER_UNIT: u64 = 256 << 10;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Bytes of each file in a comparison. Its pieces are in all stores.
const FILE: u64 = 64 * MIB;

/// The measured report, as far as it is used.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    link_mb_per_s: f64,
    block_link_mb_per_s: f64,
    stripe_unit: Option<u64>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize)]
struct Row {
    case: String,
    pattern: String,
    points: Vec<Point>,
}

#[derive(Clone, Debug, Deserialize)]
struct Point {
    stores: u16,
    median: Reading,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Reading {
    mib_per_s: f64,
    latency: Latency,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Latency {
    p50: f64,
}

/// A measured rate beside the predicted one, in MiB/s.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Files and clients.
    pub case: String,
    /// Pattern of the requests.
    pub pattern: String,
    /// Number of stores.
    pub stores: u16,
    /// Measured rate.
    pub measured: f64,
    /// Rate of the model.
    pub predicted: f64,
}

/// A report that has no constants.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// There is nothing to compare the model with.
    #[error("the report has no row with limited links: measure a case that limits them")]
    Nothing,
    /// A measured rate that nothing can be compared with.
    #[error(
        "the report has a rate of {rate} MiB/s for {pattern} of {case} with {stores} stores: measure it again"
    )]
    Rate {
        /// Case of the row.
        case: String,
        /// Pattern of the row.
        pattern: String,
        /// Number of stores.
        stores: u16,
        /// The rate.
        rate: f64,
    },
    /// A row is missing that constants come from.
    #[error("the report has no row {pattern} of {case} with 1 store: measure all cases")]
    Missing {
        /// Case of the row.
        case: &'static str,
        /// Pattern of the row.
        pattern: String,
    },
    /// The constants cannot be simulated.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl Compared {
    /// Returns the difference relative to the measured rate.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }

    /// Returns true if the model is close enough.
    pub fn is_close(&self) -> bool {
        self.error().abs() <= TOLERANCE
    }
}

/// Returns true if the model is close enough to all measured rates.
///
/// # Errors
/// There are none.
pub fn all_close(rows: &[Compared]) -> Result<bool, CalibrationError> {
    if rows.is_empty() { Err(CalibrationError::Nothing) } else { Ok(rows.iter().all(Compared::is_close)) }
}

/// Constants of the model for one pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Time of a request that depends on no size.
    pub overhead: Nanos,
    /// Bytes per second of the machine of the clients.
    pub client: f64,
}

impl Report {
    /// Returns the length of the pieces of files.
    pub fn unit(&self) -> u64 {
        self.stripe_unit.unwrap_or(SERVER_UNIT)
    }

    fn reading(&self, case: &'static str, pattern: &str) -> Result<Reading, CalibrationError> {
        let row = self.rows.iter().find(|row| row.case == case && row.pattern == pattern);
        let point = row.and_then(|row| row.points.iter().find(|point| point.stores == 1));
        let missing = || CalibrationError::Missing { case, pattern: pattern.to_owned() };
        point.map(|point| point.median).ok_or_else(missing)
    }

    /// Returns the constants of a pattern, from the rows over loopback with 1 store. A request of
    /// 4 KiB takes the overhead and little else; a record of 1 MiB also takes the machine's time.
    ///
    /// # Errors
    /// A row is missing.
    pub fn constants(&self, pattern: &str) -> Result<Constants, CalibrationError> {
        let block = self.reading("loopback", "random_read")?.latency.p50 / 1e6;
        let record = 1.0 / self.reading("loopback", pattern)?.mib_per_s;
        let each = ((record - block) / (MIB - BLOCK) as f64).max(1e-12);
        let overhead = (block - each * BLOCK as f64).max(0.0);
        Ok(Constants { overhead: (overhead * SECOND as f64) as Nanos, client: 1.0 / each })
    }

    /// Compares all rows with limited links.
    ///
    /// # Errors
    /// A row is missing or has no rate, or the constants cannot be simulated.
    pub fn compare(&self, seed: u64) -> Result<Vec<Compared>, CalibrationError> {
        let mut all = Vec::new();
        for row in self.rows.iter().filter(|row| row.case != "loopback") {
            let model = self.model(row, seed)?;
            for point in &row.points {
                let measured = point.median.mib_per_s;
                if !(measured.is_finite() && measured > 0.0) {
                    let (case, pattern) = (row.case.clone(), row.pattern.clone());
                    return Err(CalibrationError::Rate {
                        case,
                        pattern,
                        stores: point.stores,
                        rate: measured,
                    });
                }
                let shape = Shape { stores: point.stores, ..model.shape };
                let predicted = run(&Model { shape, ..model })?.rate / MIB as f64;
                all.push(Compared {
                    case: row.case.clone(),
                    pattern: row.pattern.clone(),
                    stores: point.stores,
                    measured,
                    predicted,
                });
            }
        }
        Ok(all)
    }

    fn model(&self, row: &Row, seed: u64) -> Result<Model, CalibrationError> {
        let is_small = row.case == "blocks";
        let clients = if row.case == "clients" { 4 } else { 1 };
        let pattern = if is_small { "random_record_read" } else { &*row.pattern };
        let Constants { overhead, client } = self.constants(pattern)?;
        let mb = if is_small { self.block_link_mb_per_s } else { self.link_mb_per_s };
        let rates = Rates {
            link: mb * 1e6 * DATA_SHARE,
            burst: MEASURED_BURST,
            client,
            // All mounts are on one machine.
            clients_per_machine: clients,
            overhead,
        };
        let requests = Requests {
            bytes: if is_small { BLOCK } else { MIB },
            depth: if is_small { 16 } else { 1 },
            is_random: row.pattern.starts_with("random"),
            together: false,
        };
        let unit = self.unit();
        let shape = Shape { stores: 1, clients, file: FILE, placement: Placement::Stripe, unit };
        Ok(Model { rates, requests, shape, warm_up: SECOND / 2, end: 4 * SECOND, seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: &str) -> Report {
        let text = format!(
            r#"{{"format": 1, "link_mb_per_s": 100, "block_link_mb_per_s": 20, "stripe_unit": 262144, "rows": [{rows}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn row(case: &str, pattern: &str, points: &[(u16, f64, f64)]) -> String {
        let point = |(stores, rate, p50): &(u16, f64, f64)| {
            format!(
                r#"{{"stores": {stores}, "median": {{"mib_per_s": {rate}, "latency": {{"p50": {p50}, "p99": 1, "p999": 1}}}},
                    "rounds": [], "ratio": null, "wanted": null, "met": null}}"#
            )
        };
        let points: Vec<String> = points.iter().map(point).collect();
        format!(r#"{{"case": "{case}", "pattern": "{pattern}", "points": [{}]}}"#, points.join(","))
    }

    fn loopback() -> [String; 2] {
        [
            row("loopback", "random_read", &[(1, 100.0, 24.0)]),
            row("loopback", "random_record_read", &[(1, 1000.0, 1000.0)]),
        ]
    }

    /// Catches an overhead in the wrong unit, and a rate that has the overhead in it.
    #[test]
    fn constants_come_from_loopback() {
        let constants = report(&loopback().join(",")).constants("random_record_read").unwrap();
        // 1 ms for a record, 24 us for a block, of which the machine takes 3.8 us.
        assert!(constants.overhead.abs_diff(20_190) < 50, "{constants:?}");
        assert!((constants.client / (MIB as f64 / 980e-6) - 1.0).abs() < 0.01, "{constants:?}");
        let error = report("").constants("write").unwrap_err().to_string();
        assert!(error.contains("random_read of loopback"), "{error}");
    }

    /// Catches rows that calibrate the model and are compared with it, and a unit that is ignored.
    #[test]
    fn limited_rows_are_compared() {
        let [block, record] = loopback();
        let limited = row("one_file", "random_record_read", &[(1, 91.0, 1.0), (4, 200.0, 1.0)]);
        let compared = report(&[block, record, limited].join(",")).compare(1).unwrap();
        assert_eq!(compared.len(), 2);
        assert!(compared[0].is_close(), "{compared:?}");
        assert!(compared[1].predicted > 300.0 && !compared[1].is_close(), "{compared:?}");
    }

    /// Catches a check that passes because it has nothing to compare.
    #[test]
    fn a_report_without_usable_rows_is_refused() {
        let [block, record] = loopback();
        let compare = |rows: &[String]| {
            let rows = report(&rows.join(",")).compare(1).map_err(|e| e.to_string())?;
            all_close(&rows).map_err(|e| e.to_string())
        };
        let limited = |points: &[_]| row("one_file", "random_record_read", points);
        for rows in [vec![block.clone(), record.clone()], vec![block.clone(), record.clone(), limited(&[])]] {
            assert!(compare(&rows).unwrap_err().contains("no row with limited links"), "{rows:?}");
        }
        let stopped = compare(&[block, record, limited(&[(2, 0.0, 1.0)])]).unwrap_err();
        assert!(stopped.contains("a rate of 0 MiB/s"), "{stopped}");
    }

    /// Catches a report of the server's default that is compared with pieces of another length.
    #[test]
    fn a_report_without_a_unit_has_the_default_of_the_server() {
        let text = r#"{"link_mb_per_s": 100, "block_link_mb_per_s": 20, "stripe_unit": null, "rows": []}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        assert_eq!(report.unit(), 256 << 10);
    }
}
