//! The result of a scaling run as data. The JSON file has the same fields. No I/O, no locks, no
//! clock.

use measure::statistics::{median, spread};
use serde::{Deserialize, Serialize};

use super::{
    check::{Verdict, judge},
    plan::{Extent, Pattern, Series},
    run::Measured,
};
use crate::{
    machine::Machine,
    report::TargetInfo,
    sample::Latency,
    usage::{Memory, Programs},
};

/// Version of the JSON format.
pub const FORMAT: u32 = 1;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// [`FORMAT`].
    pub format: u32,
    /// Start time, RFC 3339, UTC.
    pub began: String,
    /// Commit of the source tree.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
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
    /// The series.
    pub series: Series,
    /// The pattern.
    pub pattern: Pattern,
    /// Name of the target.
    pub target: String,
    /// Points in the order of the load.
    pub points: Vec<Sample>,
}

/// A point of a curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The load.
    pub load: u64,
    /// Readings of the rounds.
    pub rounds: Vec<Reading>,
    /// Median of each value over the rounds.
    pub median: Reading,
    /// `(largest - smallest) / median` of the rates.
    pub spread: Option<f64>,
}

/// The measurements of one point in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Rate in [`Pattern::unit`] per second.
    pub rate: f64,
    /// Latency of the requests.
    pub latency: Latency,
    /// Resident memory before the load.
    pub idle: Resident,
    /// Resident memory after the load; for empty files, while all files exist.
    pub resident: Resident,
}

/// Resident memory of a target's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resident {
    /// Memory of all client processes together.
    pub client: Memory,
    /// Memory of all server processes together.
    pub servers: Memory,
}

/// Circumstances of a run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// RFC 3339, UTC.
    pub began: String,
    /// Commit of the source tree.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
    /// The command line.
    pub command: String,
}

impl Resident {
    /// Returns the current resident memory.
    pub fn of(programs: &Programs) -> Self {
        let (client, servers) = programs.memory();
        Self { client, servers }
    }

    fn median(of: &[Self]) -> Self {
        let number = |number: fn(&Self) -> u64| {
            let values: Vec<f64> = of.iter().map(|resident| number(resident) as f64).collect();
            median(&values).unwrap_or(0.0) as u64
        };
        Self {
            client: Memory { own: number(|r| r.client.own), shared: number(|r| r.client.shared) },
            servers: Memory { own: number(|r| r.servers.own), shared: number(|r| r.servers.shared) },
        }
    }
}

impl Reading {
    /// Returns the median of each value.
    pub fn median(rounds: &[Self]) -> Self {
        let resident =
            |of: fn(&Self) -> Resident| Resident::median(&rounds.iter().map(of).collect::<Vec<_>>());
        Self {
            rate: median(&rates(rounds)).unwrap_or(0.0),
            latency: Latency::median(&rounds.iter().map(|round| round.latency).collect::<Vec<_>>())
                .unwrap_or_default(),
            idle: resident(|round| round.idle),
            resident: resident(|round| round.resident),
        }
    }

    /// Returns the growth of client and servers in bytes, including the server's exported memory.
    pub fn grown(&self) -> (u64, u64) {
        let all = |memory: Memory| memory.own + memory.shared;
        (
            all(self.resident.client).saturating_sub(all(self.idle.client)),
            all(self.resident.servers).saturating_sub(all(self.idle.servers)),
        )
    }
}

fn rates(rounds: &[Reading]) -> Vec<f64> {
    rounds.iter().map(|round| round.rate).collect()
}

impl Scaling {
    /// Computes medians, spreads and verdicts.
    pub fn new(setting: Setting, extent: &Extent, left_out: Vec<String>, measured: &Measured) -> Self {
        let Setting { began, commit, machine, command } = setting;
        let curves = curves(measured);
        Self {
            format: FORMAT,
            began,
            commit,
            machine,
            command,
            bytes: extent.bytes,
            rounds: measured.rounds,
            verdicts: judge(&curves, &measured.targets),
            targets: measured.targets.clone(),
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
        let mut loads: Vec<u64> = curves.flat_map(|curve| &curve.points).map(|point| point.load).collect();
        loads.sort_unstable();
        loads.dedup();
        loads
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

/// Returns the cells as curves, in the order of series, patterns and targets.
fn curves(measured: &Measured) -> Vec<Curve> {
    let mut cells: Vec<_> = measured.cells.iter().collect();
    cells.sort_by_key(|cell| (cell.point.series, cell.pattern, cell.target, cell.point.load));
    let mut curves: Vec<Curve> = Vec::new();
    for cell in cells {
        let Some(told) = measured.targets.get(cell.target) else { continue };
        let (series, pattern) = (cell.point.series, cell.pattern);
        let sample = Sample {
            load: cell.point.load,
            median: Reading::median(&cell.rounds),
            spread: spread(&rates(&cell.rounds)),
            rounds: cell.rounds.clone(),
        };
        match curves.last_mut() {
            Some(last) if (last.series, last.pattern, &last.target) == (series, pattern, &told.name) => {
                last.points.push(sample);
            }
            _ => curves.push(Curve { series, pattern, target: told.name.clone(), points: vec![sample] }),
        }
    }
    curves
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::scaling::{plan::Point, run::Cell};

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

    /// shm and null with threads and with numbers of files. shm loses more than a fifth of its
    /// writes at 4 threads. All numbers are exact in binary, so that JSON preserves them.
    pub(crate) fn example() -> Scaling {
        let told = |name: &str, ceiling| TargetInfo {
            name: name.into(),
            title: format!("about <{name}>"),
            ceiling,
            commands: vec![format!("run {name}")],
        };
        let mut cells = Vec::new();
        for (series, loads) in [(Series::Threads, [1, 2, 4]), (Series::Count, [1, 1000, 1_000_000])] {
            for (n, load) in loads.into_iter().enumerate() {
                for (target, factor) in [(0, 1.0), (1, 2.0)] {
                    for pattern in series.patterns() {
                        let collapse = target == 0 && pattern == Pattern::Write && load == 4;
                        let rate = if collapse { 150.0 } else { 100.0 * f64::from(1 << n) * factor };
                        let rounds = [0.5, 1.0, 2.0].map(|round| reading(rate * round)).to_vec();
                        cells.push(Cell { target, point: Point { series, load }, pattern, rounds });
                    }
                }
            }
        }
        let measured = Measured { cells, targets: vec![told("shm", false), told("null", true)], rounds: 3 };
        let extent =
            Extent { series: Vec::new(), rounds: 3, bytes: 1 << 30, random_ms: 1000, least_files: 1000 };
        let machine = Machine {
            cpu: "A CPU".into(),
            cores: 2,
            kernel: "6.1.0".into(),
            os: "Debian 12".into(),
            memory: 24 << 30,
            congestion: crate::machine::Congestion { system: "cubic".into(), rfs: "cubic".into() },
        };
        let setting = Setting {
            began: "2024-01-02T03:04:05Z".into(),
            commit: "0123456789ab".into(),
            machine,
            command: "rfs-scaling --rounds 3".into(),
        };
        Scaling::new(setting, &extent, vec!["size 8 GiB is left out".into()], &measured)
    }

    #[test]
    fn cells_become_curves_with_medians() {
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
        let json = crate::places::json(&scaling).unwrap();
        assert_eq!(serde_json::from_str::<Scaling>(&json).unwrap(), scaling);
    }
}
