//! The result of a comparison as data. The JSON file has the same fields. No I/O except
//! [`write()`], no locks, no clock.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    charts,
    column::{Column, Reading},
    lineup::{Entrant, Side},
    measure::Measured,
    ratios::{median_reading, throughput_spread},
    requirements::{Verdict, judge},
};
use crate::{Result, machine::Machine, places, usage::Idle};

/// Version of the JSON format.
pub const FORMAT: u32 = 1;

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`FORMAT`].
    pub format: u32,
    /// Start time, RFC 3339, UTC.
    pub began: String,
    /// Commit of the source tree.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
    /// The measuring programs.
    pub programs: Vec<String>,
    /// The program's own command line.
    pub command: String,
    /// Bytes of the file.
    pub size: u64,
    /// Complete rounds.
    pub rounds: u32,
    /// The targets, in the order of tables.
    pub targets: Vec<TargetInfo>,
    /// A series per target and column.
    pub results: Vec<Series>,
    /// Results of the checks against requirements.
    pub verdicts: Vec<Verdict>,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Short name.
    pub name: String,
    /// Description.
    pub title: String,
    /// Role in the comparison.
    pub side: Side,
    /// Command lines of its last start.
    pub commands: Vec<String>,
    /// The reason why it was skipped, or skipped from some round on.
    pub left_out: Option<String>,
    /// Usage of its programs while idle, at the end of each round.
    pub idle: Vec<Idle>,
}

/// The figures of one target in one column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the target.
    pub target: String,
    /// The column.
    pub column: Column,
    /// Readings of the rounds.
    pub rounds: Vec<Reading>,
    /// Medians of the rounds.
    pub median: Reading,
    /// `(largest - smallest) / median` of the throughputs.
    pub spread: Option<f64>,
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
    /// The measuring programs.
    pub programs: Vec<String>,
    /// The command line.
    pub command: String,
    /// Bytes of the file.
    pub size: u64,
}

impl Comparison {
    /// Computes medians, spreads and verdicts.
    pub fn new(setting: Setting, entrants: &[Entrant], measured: &Measured) -> Self {
        let targets = entrants.iter().enumerate().map(|(n, entrant)| TargetInfo {
            name: entrant.name.clone(),
            title: entrant.title.clone(),
            side: entrant.side,
            commands: measured.commands.get(n).cloned().unwrap_or_default(),
            left_out: measured.left_out.get(n).cloned().flatten(),
            idle: measured.idle.get(n).cloned().unwrap_or_default(),
        });
        let series = measured.cells.iter().filter_map(|cell| {
            Some(Series {
                target: entrants.get(cell.target)?.name.clone(),
                column: cell.column,
                median: median_reading(&cell.rounds),
                spread: throughput_spread(&cell.rounds),
                rounds: cell.rounds.clone(),
            })
        });
        let Setting { began, commit, machine, programs, command, size } = setting;
        let mut comparison = Self {
            format: FORMAT,
            began,
            commit,
            machine,
            programs,
            command,
            size,
            rounds: measured.rounds,
            targets: targets.collect(),
            results: series.collect(),
            verdicts: Vec::new(),
        };
        comparison.verdicts = judge(&comparison);
        comparison
    }

    /// Returns true if all requirements are met.
    pub fn passes(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.met)
    }
}

/// Writes JSON, charts and log into a directory, which is created. The file names begin with
/// `stem`. Returns the paths.
pub fn write(comparison: &Comparison, log: &str, dir: &Path, stem: &str) -> Result<Vec<PathBuf>> {
    let mut files =
        vec![(format!("{stem}.json"), places::json(comparison)?), (format!("{stem}.log"), log.to_owned())];
    files.extend(charts::all(comparison).into_iter().map(|(name, svg)| (format!("{stem}-{name}.svg"), svg)));
    places::write(dir, files)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::{compare::column::Job, sample::Latency, usage::Memory};

    /// A comparison of shm, null and tmpfs: IOzone with 4 KiB records and fio with 4 KiB blocks; a
    /// peer is missing. shm has half of null's throughput and twice its latency.
    pub(crate) fn example() -> Comparison {
        let target = |name: &str, side, left_out: Option<&str>| TargetInfo {
            name: name.into(),
            title: format!("about <{name}>"),
            side,
            commands: vec![format!("run {name}")],
            left_out: left_out.map(str::to_owned),
            idle: Vec::new(),
        };
        let mut targets = vec![
            target("shm", Side::Ours, None),
            target("null", Side::Ceiling, None),
            target("tmpfs", Side::Ceiling, None),
            target("glusterfs", Side::Peer, Some("there is no glusterd")),
        ];
        let memory = |own: u64, shared: u64| Memory { own: own << 20, shared: shared << 20 };
        targets[0].idle = vec![Idle { cpu_percent: 0.5, client: memory(3, 160), servers: memory(2, 160) }];
        let columns: Vec<Column> =
            [Job::Iozone(4096), Job::Fio(4096)].into_iter().flat_map(Job::columns).collect();
        let series = |target: &str, factor: f64, cpu: Option<f64>| -> Vec<Series> {
            columns
                .iter()
                .map(|&column| {
                    let direct = matches!(column.pattern, crate::compare::column::Pattern::Direct(_));
                    let latency = Latency { p50: 10.0 / factor, p99: 20.0 / factor, p999: 1000.0 / factor };
                    let rounds = [1.0, 3.0, 2.0].map(|round| Reading {
                        mib_per_s: 100.0 * factor * round,
                        latency: direct.then_some(latency),
                        cpu_s_per_gib: cpu,
                        caller_s_per_gib: direct.then_some(0.25),
                    });
                    Series {
                        target: target.into(),
                        column,
                        median: median_reading(&rounds),
                        spread: throughput_spread(&rounds),
                        rounds: rounds.into(),
                    }
                })
                .collect()
        };
        let results =
            [series("shm", 1.0, Some(0.5)), series("null", 2.0, Some(0.4)), series("tmpfs", 8.0, None)]
                .concat();
        let mut comparison = Comparison {
            format: FORMAT,
            began: "2024-01-02T03:04:05Z".into(),
            commit: "0123456789ab".into(),
            machine: Machine {
                cpu: "A CPU".into(),
                cores: 2,
                kernel: "6.1.0".into(),
                os: "Debian 12".into(),
                memory: 24 << 30,
                congestion: crate::machine::Congestion { system: "cubic".into(), rfs: "cubic".into() },
            },
            programs: vec!["IOzone 3.489".into(), "fio-3.33".into()],
            command: "rfs-compare --compare=null,tmpfs,glusterfs".into(),
            size: 128 << 20,
            rounds: 3,
            targets,
            results,
            verdicts: Vec::new(),
        };
        comparison.verdicts = judge(&comparison);
        comparison
    }

    #[test]
    fn the_json_form_reads_back() {
        let comparison = example();
        let json = serde_json::to_string_pretty(&comparison).unwrap();
        assert_eq!(serde_json::from_str::<Comparison>(&json).unwrap(), comparison);
    }

    #[test]
    fn one_ratio_below_fails_it_all() {
        let mut comparison = example();
        assert!(!comparison.passes());
        comparison.verdicts.retain(|verdict| verdict.met);
        assert!(comparison.passes());
    }

    #[test]
    fn files_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new/results");
        let written = write(&example(), "raw", &out, "run").unwrap();
        assert_eq!(written, ["run.json", "run.log", "run-kept.svg"].map(|name| out.join(name)));
        assert_eq!(fs::read_to_string(&written[1]).unwrap(), "raw");
    }
}
