//! The result of a comparison as data. The JSON file has the same fields. No I/O except
//! [`write()`], no locks, no clock.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    charts,
    requirements::{Verdict, judge},
};
use crate::{
    Result,
    engine::job::{Column, Reading},
    harness::{Measured, Series, TargetInfo},
    report::{Setting, command, files},
};

/// Version of the JSON format.
pub const FORMAT: u32 = 1;

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`FORMAT`].
    pub format: u32,
    /// Circumstances of the run.
    #[serde(flatten)]
    pub setting: Setting,
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
    pub results: Vec<Series<Column, Reading>>,
    /// Results of the checks against requirements.
    pub verdicts: Vec<Verdict>,
}

impl Comparison {
    /// Judges the measurements.
    pub fn new(
        setting: Setting,
        programs: Vec<String>,
        size: u64,
        measured: &Measured<Column, Reading>,
    ) -> Self {
        let mut comparison = Self {
            format: FORMAT,
            setting,
            programs,
            command: command(),
            size,
            rounds: measured.rounds,
            targets: measured.targets.clone(),
            results: measured.series.clone(),
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
    let mut all =
        vec![(format!("{stem}.json"), files::json(comparison)?), (format!("{stem}.log"), log.to_owned())];
    all.extend(charts::all(comparison).into_iter().map(|(name, svg)| (format!("{stem}-{name}.svg"), svg)));
    files::write(dir, all)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::{
        engine::job::{Job, Pattern},
        harness::usage::{Idle, Memory},
        report::tests::setting,
        sample::Latency,
        target::Side,
    };

    /// Returns a comparison of shm, null and tmpfs: IOzone with 4 KiB records and fio with 4 KiB
    /// blocks; a peer is missing. shm has half of null's throughput and twice its latency.
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
        let series = |target: &str, factor: f64, cpu: Option<f64>| -> Vec<Series<Column, Reading>> {
            columns
                .iter()
                .map(|&column| {
                    let direct = matches!(column.pattern, Pattern::Direct(_));
                    let latency = Latency { p50: 10.0 / factor, p99: 20.0 / factor, p999: 1000.0 / factor };
                    let rounds = [1.0, 3.0, 2.0].map(|round| Reading {
                        mib_per_s: 100.0 * factor * round,
                        latency: direct.then_some(latency),
                        cpu_s_per_gib: cpu,
                        caller_s_per_gib: direct.then_some(0.25),
                    });
                    Series::new(target, column, rounds.into())
                })
                .collect()
        };
        let results =
            [series("shm", 1.0, Some(0.5)), series("null", 2.0, Some(0.4)), series("tmpfs", 8.0, None)]
                .concat();
        let mut comparison = Comparison {
            format: FORMAT,
            setting: setting(),
            programs: vec!["IOzone 3.489".into(), "fio-3.33".into()],
            command: "rfs-iozone compare --compare=null,tmpfs,glusterfs".into(),
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
