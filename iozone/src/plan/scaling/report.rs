//! The result of a scaling run as data. The JSON file has the same fields. No I/O, no locks, no
//! clock.

use serde::{Deserialize, Serialize};

use super::{
    check::{Verdict, judge},
    meter::Column,
    reading::Reading,
    series::{Extent, Series},
};
use crate::{
    harness::{Measured, sorted},
    load::Pattern,
    report::{Setting, TargetInfo, command},
};

/// Version of the JSON format.
pub const FORMAT: u32 = 1;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// [`FORMAT`].
    pub format: u32,
    /// Circumstances of the run.
    #[serde(flatten)]
    pub setting: Setting,
    /// The program's own command line.
    pub command: String,
    /// Bytes of all files of a point together, except in the series of file sizes.
    pub bytes: u64,
    /// Complete rounds.
    pub rounds: u32,
    /// The targets, in the order of tables.
    pub targets: Vec<TargetInfo>,
    /// One per series, pattern and target.
    pub curves: Vec<Curve>,
    /// Reasons why points were not measured.
    pub left_out: Vec<String>,
    /// The lowest point of each curve relative to smaller loads.
    pub verdicts: Vec<Verdict>,
}

/// The measurements of one target and pattern over a growing load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Load that grows in this curve.
    pub series: Series,
    /// Pattern of the requests in it.
    pub pattern: Pattern,
    /// Name of the target.
    pub target: String,
    /// Points in the order of the load.
    pub points: Vec<Sample>,
}

/// A point of a curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Value of the growing load, in the unit of its series.
    pub load: u64,
    /// Readings of the rounds.
    pub rounds: Vec<Reading>,
    /// Median of each value over the rounds.
    pub median: Reading,
    /// `(largest - smallest) / median` of the rates.
    pub spread: Option<f64>,
}

impl Scaling {
    /// Computes curves and verdicts.
    pub fn new(
        setting: Setting,
        extent: &Extent,
        left_out: Vec<String>,
        measured: &Measured<Column, Reading>,
    ) -> Self {
        let targets: Vec<TargetInfo> = measured.targets.iter().map(TargetInfo::from).collect();
        let curves = curves(measured, &targets);
        Self {
            format: FORMAT,
            setting,
            command: command(),
            bytes: extent.bytes,
            rounds: measured.rounds,
            verdicts: judge(&curves, &targets),
            targets,
            curves,
            left_out,
        }
    }

    /// Returns the measured series, in order.
    pub fn series(&self) -> Vec<Series> {
        let there = |series: &Series| self.curves.iter().any(|curve| curve.series == *series);
        Series::ALL.into_iter().filter(there).collect()
    }

    /// Returns the loads of a series, in order.
    pub fn loads(&self, series: Series) -> Vec<u64> {
        let curves = self.curves.iter().filter(|curve| curve.series == series);
        sorted(curves.flat_map(|curve| &curve.points).map(|point| point.load))
    }

    /// Returns the medians at a point.
    pub fn median(&self, series: Series, pattern: Pattern, target: &str, load: u64) -> Option<&Reading> {
        let curve = self
            .curves
            .iter()
            .find(|curve| curve.series == series && curve.pattern == pattern && curve.target == target)?;
        Some(&curve.points.iter().find(|point| point.load == load)?.median)
    }

    /// Returns true if no curve has a verdict below the minimum.
    pub fn passes(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.met)
    }
}

/// Returns the measured series as curves, in the order of series, patterns and targets.
fn curves(measured: &Measured<Column, Reading>, targets: &[TargetInfo]) -> Vec<Curve> {
    let target = |name: &str| targets.iter().position(|info| info.name == name);
    let mut all: Vec<_> = measured.series.iter().collect();
    all.sort_by_key(|one| {
        let Column { point, pattern } = one.column;
        (point.series, pattern, target(&one.target), point.load)
    });
    let mut curves: Vec<Curve> = Vec::new();
    for one in all {
        let (series, pattern) = (one.column.point.series, one.column.pattern);
        let sample = Sample {
            load: one.column.point.load,
            median: one.median,
            spread: one.spread,
            rounds: one.rounds.clone(),
        };
        match curves.last_mut() {
            Some(last) if (last.series, last.pattern, &last.target) == (series, pattern, &one.target) => {
                last.points.push(sample);
            }
            _ => curves.push(Curve { series, pattern, target: one.target.clone(), points: vec![sample] }),
        }
    }
    curves
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        harness::{self, usage::Memory},
        plan::scaling::{reading::Resident, series::Point},
        report::tests::setting,
        sample::Latency,
        target::Side,
    };

    pub(crate) fn reading(rate: f64) -> Reading {
        let memory = |own: u64, shared: u64| Memory { own: own << 20, shared: shared << 20 };
        let resident = |more: u64| Resident { client: memory(10 + more, 1), servers: memory(5 + more, 64) };
        Reading {
            rate,
            latency: Latency { p50: 4800.0 / rate, p99: 9600.0 / rate, p999: 19200.0 / rate },
            idle: resident(0),
            resident: resident(2),
        }
    }

    /// Returns shm and null with threads and with numbers of files. shm loses more than a fifth of
    /// its writes at 4 threads. All numbers are exact in binary, so that JSON preserves them.
    pub(crate) fn example() -> Scaling {
        let told = |name: &str, side| harness::TargetInfo {
            name: name.into(),
            title: format!("about <{name}>"),
            side,
            commands: vec![format!("run {name}")],
            ..harness::TargetInfo::default()
        };
        let mut all = Vec::new();
        for (series, loads) in [(Series::Threads, [1, 2, 4]), (Series::Count, [1, 1000, 1_000_000])] {
            for (n, load) in loads.into_iter().enumerate() {
                for (target, factor) in [("shm", 1.0), ("null", 2.0)] {
                    for pattern in series.patterns() {
                        let collapse = target == "shm" && pattern == Pattern::Write && load == 4;
                        let rate = if collapse { 150.0 } else { 100.0 * f64::from(1 << n) * factor };
                        let rounds = [0.5, 1.0, 2.0].map(|round| reading(rate * round)).to_vec();
                        let column = Column { point: Point { series, load }, pattern };
                        all.push(harness::Series::new(target, column, rounds));
                    }
                }
            }
        }
        let targets = vec![told("shm", Side::Ours), told("null", Side::Ceiling)];
        let measured = Measured { series: all, targets, rounds: 3, log: String::new() };
        let extent =
            Extent { series: Vec::new(), rounds: 3, bytes: 1 << 30, random_ms: 1000, least_files: 1000 };
        let left_out = vec!["size 8 GiB is left out".into()];
        let scaling = Scaling::new(setting(), &extent, left_out, &measured);
        Scaling { command: "rfs-iozone scaling --rounds 3".into(), ..scaling }
    }

    #[test]
    fn series_become_curves_with_medians() {
        let scaling = example();
        assert_eq!(scaling.curves.len(), 2 * 3 * 2);
        assert_eq!(scaling.series(), [Series::Threads, Series::Count]);
        assert_eq!(scaling.loads(Series::Count), [1, 1000, 1_000_000]);
        let median = |pattern, target, load| scaling.median(Series::Threads, pattern, target, load);
        assert_eq!(median(Pattern::Write, "shm", 2).unwrap().rate, 200.0);
        assert_eq!(median(Pattern::Read, "null", 4).unwrap().rate, 800.0);
        assert_eq!(median(Pattern::Read, "null", 4).unwrap().grown(), (2 << 20, 2 << 20));
        assert!(median(Pattern::Read, "tcp", 4).is_none() && median(Pattern::Create, "shm", 4).is_none());
        assert_eq!(scaling.curves[0].points[0].spread, Some(1.5));
    }

    #[test]
    fn the_json_form_reads_back() {
        let scaling = example();
        let json = crate::report::files::json(&scaling).unwrap();
        assert_eq!(serde_json::from_str::<Scaling>(&json).unwrap(), scaling);
    }
}
