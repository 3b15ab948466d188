//! The result of a run as data, and its three output formats. No I/O except [`write()`], no locks,
//! no clock.

pub mod chart;
pub mod svg;
pub mod table;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    Result,
    machine::Machine,
    places,
    runner::Measured,
    sample::{self, Phase},
    size,
};

/// Version of the JSON format.
pub const FORMAT: u32 = 1;
/// Name of the reference target for ratios.
pub const REFERENCE: &str = "null";

/// The result of a run. The JSON file has the same fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Start time, RFC 3339, UTC.
    pub began: String,
    /// Commit of the source tree.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
    /// The measuring engine.
    pub engine: String,
    /// The harness's own command line.
    pub command: String,
    /// Bytes per file.
    pub file_size: u64,
    /// Record sizes in bytes.
    pub record_sizes: Vec<u64>,
    /// Number of concurrent processes.
    pub threads: u32,
    /// Rounds.
    pub rounds: u32,
    /// True if the page cache answers reads, so that the file system does not see them.
    pub reads_are_page_cache_hits: bool,
    /// The targets.
    pub targets: Vec<TargetInfo>,
    /// One entry per target, record size and phase.
    pub results: Vec<Entry>,
}

/// A target in a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Short name.
    pub name: String,
    /// Description.
    pub title: String,
    /// True for a target that is only an upper bound.
    pub ceiling: bool,
    /// Command lines of its last run.
    pub commands: Vec<String>,
}

/// Throughput of one phase. All throughput is in KiB/s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the target.
    pub target: String,
    /// Bytes per operation.
    pub record_size: u64,
    /// The phase.
    pub phase: Phase,
    /// Throughput of the rounds.
    pub kib_per_s: Vec<f64>,
    /// Median of the rounds.
    pub median_kib_per_s: f64,
    /// `(largest - smallest) / median` of the rounds.
    pub spread: Option<f64>,
    /// Median relative to the median of [`REFERENCE`].
    pub ratio_to_null: Option<f64>,
}

impl Report {
    /// Returns the median in MiB/s.
    pub fn mib_per_s(&self, target: &str, record_size: u64, phase: Phase) -> Option<f64> {
        self.entry(target, record_size, phase).map(|entry| entry.median_kib_per_s / 1024.0)
    }

    /// Returns the ratio to the null file system.
    pub fn ratio(&self, target: &str, record_size: u64, phase: Phase) -> Option<f64> {
        self.entry(target, record_size, phase)?.ratio_to_null
    }

    /// Returns true if the target was measured.
    pub fn has(&self, target: &str) -> bool {
        self.targets.iter().any(|info| info.name == target)
    }

    /// Returns a one-line description of the setting.
    pub fn setting(&self) -> String {
        let threads = if self.threads > 1 { format!(" x {} processes", self.threads) } else { String::new() };
        let rounds =
            if self.rounds > 1 { format!(", medians of {} rounds", self.rounds) } else { ", 1 round".into() };
        format!("{}, {} files{threads}{rounds}", self.engine, size::show(self.file_size))
    }

    fn entry(&self, target: &str, record_size: u64, phase: Phase) -> Option<&Entry> {
        self.results.iter().find(|e| e.target == target && e.record_size == record_size && e.phase == phase)
    }
}

/// Returns the entries of all cells, with medians, spreads and ratios.
pub fn entries(measured: &Measured, targets: &[TargetInfo]) -> Vec<Entry> {
    let median = |target: usize, record: u64, phase: Phase| {
        let cell = measured.cells.iter().find(|cell| cell.target == target && cell.record == record)?;
        sample::median(&cell.samples.iter().map(|s| s.kib_per_s(phase)).collect::<Vec<_>>())
    };
    let reference = targets.iter().position(|target| target.name == REFERENCE);
    let mut entries = Vec::new();
    for cell in &measured.cells {
        for phase in Phase::ALL {
            let kib_per_s: Vec<f64> = cell.samples.iter().map(|s| s.kib_per_s(phase)).collect();
            let (Some(middle), Some(info)) = (sample::median(&kib_per_s), targets.get(cell.target)) else {
                continue;
            };
            let null = reference.and_then(|target| median(target, cell.record, phase));
            entries.push(Entry {
                target: info.name.clone(),
                record_size: cell.record,
                phase,
                spread: sample::spread(&kib_per_s),
                median_kib_per_s: middle,
                ratio_to_null: null.and_then(|null| sample::ratio(middle, null)),
                kib_per_s,
            });
        }
    }
    entries
}

/// Writes JSON, chart and log into a directory, which is created. The file names begin with `stem`.
/// Returns the paths in this order.
pub fn write(report: &Report, log: &str, dir: &Path, stem: &str) -> Result<Vec<PathBuf>> {
    let texts = [("json", places::json(report)?), ("svg", chart::svg(report)), ("log", log.to_owned())];
    places::write(dir, texts.map(|(extension, text)| (format!("{stem}.{extension}"), text)).into())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::{runner::Cell, sample::Sample};

    /// Three targets, one record size, two rounds. The name of rfs needs escaping.
    pub(crate) fn example() -> Report {
        let info = |name: &str, ceiling| TargetInfo {
            name: name.into(),
            title: format!("about <{name}>"),
            ceiling,
            commands: vec![format!("rfs-fuse {name}")],
        };
        let targets = vec![info("shm", false), info("null", true), info("tmpfs", true)];
        let cell = |target, factor: f64| Cell {
            target,
            record: 65536,
            samples: [1.0, 3.0]
                .map(|round| Sample([1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|n| n * factor * round * 512_000.0)))
                .into(),
        };
        let measured =
            Measured { cells: vec![cell(0, 1.0), cell(1, 2.0), cell(2, 8.0)], ..Measured::default() };
        Report {
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
            engine: "IOzone 3.489".into(),
            command: "rfs-iozone --rounds 2".into(),
            file_size: 64 << 20,
            record_sizes: vec![65536],
            threads: 1,
            rounds: 2,
            reads_are_page_cache_hits: true,
            results: entries(&measured, &targets),
            targets,
        }
    }

    #[test]
    fn medians_and_ratios() {
        let report = example();
        assert_eq!(report.results.len(), 18);
        assert_eq!(report.mib_per_s("shm", 65536, Phase::Write), Some(1000.0));
        assert_eq!(report.mib_per_s("tmpfs", 65536, Phase::RandomWrite), Some(48000.0));
        assert_eq!(report.ratio("shm", 65536, Phase::Read), Some(0.5));
        assert_eq!(report.ratio("null", 65536, Phase::Read), Some(1.0));
        assert_eq!(report.results[0].spread, Some(1.0));
        assert_eq!(report.mib_per_s("shm", 4096, Phase::Read), None);
        assert_eq!(report.mib_per_s("tcp", 65536, Phase::Read), None);
    }

    #[test]
    fn without_the_null_file_system_there_is_no_ratio() {
        let measured = Measured {
            cells: vec![Cell { target: 0, record: 1, samples: vec![Sample([1.0; 6])] }],
            ..Measured::default()
        };
        let targets = &example().targets[..1];
        assert!(entries(&measured, targets).iter().all(|entry| entry.ratio_to_null.is_none()));
    }

    #[test]
    fn the_json_form_is_stable() {
        let json = serde_json::to_string_pretty(&example()).unwrap() + "\n";
        assert_eq!(json, include_str!("../../tests/golden/report.json"));
    }

    #[test]
    fn the_json_form_reads_back() {
        let report = example();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }

    #[test]
    fn files_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new/results");
        let written = write(&example(), "raw", &out, "run").unwrap();
        assert_eq!(written, ["run.json", "run.svg", "run.log"].map(|name| out.join(name)));
        assert!(fs::read_to_string(&written[1]).unwrap().starts_with("<svg "));
        assert_eq!(fs::read_to_string(&written[2]).unwrap(), "raw");
    }
}
