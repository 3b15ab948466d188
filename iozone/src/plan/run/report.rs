//! The result of a run as data. The JSON file has the same fields. No I/O, no locks, no clock.

use serde::{Deserialize, Serialize};

use crate::{
    engine::job::{Column, Pattern, Reading},
    harness::{Measured, Series},
    report::{REFERENCE, Setting, TargetInfo, command},
    sample::{Phase, ratio},
    size,
};

/// Version of the JSON format.
pub const FORMAT: u32 = 1;

/// The result of a run. The JSON file has the same fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Circumstances of the run.
    #[serde(flatten)]
    pub setting: Setting,
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
    /// Measured file systems, in the order of the tables.
    pub targets: Vec<TargetInfo>,
    /// One entry per target, record size and phase.
    pub results: Vec<Entry>,
}

/// Throughput of one phase. All throughput is in KiB/s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the target.
    pub target: String,
    /// Bytes per operation.
    pub record_size: u64,
    /// Phase of IOzone that was timed.
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
    /// Returns the report of a run of this program, in which the file system sees every read.
    pub fn measured(
        setting: Setting,
        engine: String,
        (file_size, record_sizes, threads): (u64, Vec<u64>, u32),
        measured: &Measured<Column, Reading>,
    ) -> Report {
        let targets: Vec<TargetInfo> = measured.targets.iter().map(TargetInfo::from).collect();
        Report {
            format: FORMAT,
            engine,
            command: command(),
            file_size,
            record_sizes,
            threads,
            rounds: measured.rounds,
            reads_are_page_cache_hits: false,
            results: entries(&measured.series, &targets, |name| Some(name.to_owned())),
            targets,
            setting,
        }
    }

    /// Returns the median in MiB/s.
    pub fn mib_per_s(&self, target: &str, record_size: u64, phase: Phase) -> Option<f64> {
        self.entry(target, record_size, phase).map(|entry| entry.median_kib_per_s / 1024.0)
    }

    /// Returns the ratio to the null file system.
    pub fn ratio(&self, target: &str, record_size: u64, phase: Phase) -> Option<f64> {
        self.entry(target, record_size, phase)?.ratio_to_null
    }

    /// Returns the report of those targets only whose names begin with `prefix`.
    pub fn only(&self, prefix: &str) -> Report {
        let mut report = self.clone();
        report.targets.retain(|info| info.name.starts_with(prefix));
        report.results.retain(|entry| entry.target.starts_with(prefix));
        report
    }

    /// Returns true if the target was measured.
    pub fn has(&self, target: &str) -> bool {
        self.targets.iter().any(|info| info.name == target)
    }

    /// Returns a one-line description of the setting.
    pub fn describe(&self) -> String {
        let threads = if self.threads > 1 { format!(" x {} processes", self.threads) } else { String::new() };
        let rounds =
            if self.rounds > 1 { format!(", medians of {} rounds", self.rounds) } else { ", 1 round".into() };
        format!("{}, {} files{threads}{rounds}", self.engine, size::show(self.file_size))
    }

    fn entry(&self, target: &str, record_size: u64, phase: Phase) -> Option<&Entry> {
        self.results.iter().find(|e| e.target == target && e.record_size == record_size && e.phase == phase)
    }
}

/// Returns the entries of IOzone's series, in the order of the targets, with ratios. `name` returns
/// the name of a series in the report; series without one are left out.
pub fn entries<'a>(
    series: &'a [Series<Column, Reading>],
    targets: &[TargetInfo],
    name: impl Fn(&'a str) -> Option<String>,
) -> Vec<Entry> {
    let entry = |series: &'a Series<Column, Reading>| {
        let Pattern::Iozone(phase) = series.column.pattern else { return None };
        Some(Entry {
            target: name(&series.target)?,
            record_size: series.column.size,
            phase,
            kib_per_s: series.rounds.iter().map(|reading| reading.mib_per_s * 1024.0).collect(),
            median_kib_per_s: series.median.mib_per_s * 1024.0,
            spread: series.spread,
            ratio_to_null: None,
        })
    };
    let mut entries: Vec<Entry> = series.iter().filter_map(entry).collect();
    entries.sort_by_key(|entry| targets.iter().position(|info| info.name == entry.target));
    let null: Vec<Entry> = entries.iter().filter(|entry| entry.target == REFERENCE).cloned().collect();
    for entry in &mut entries {
        let same = |other: &&Entry| other.record_size == entry.record_size && other.phase == entry.phase;
        let null = null.iter().find(same);
        entry.ratio_to_null = null.and_then(|null| ratio(entry.median_kib_per_s, null.median_kib_per_s));
    }
    entries
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{engine::job::Job, report::tests::setting};

    /// Returns the series of a target with records of 64 KiB, given the MiB/s of each phase.
    fn series(target: &str, rounds: &[[f64; 6]]) -> Vec<Series<Column, Reading>> {
        let of = |(n, column)| {
            let reading = |round: &[f64; 6]| Reading { mib_per_s: round[n], ..Reading::default() };
            Series::new(target, column, rounds.iter().map(reading).collect())
        };
        Job::Iozone(65536).columns().into_iter().enumerate().map(of).collect()
    }

    /// Returns three targets, one record size, two rounds. The name of rfs needs escaping.
    pub(crate) fn example() -> Report {
        let info = |name: &str, ceiling| TargetInfo {
            name: name.into(),
            title: format!("about <{name}>"),
            ceiling,
            commands: vec![format!("rfs-fuse {name}")],
        };
        let targets = vec![info("shm", false), info("null", true), info("tmpfs", true)];
        let of = |target, factor: f64| {
            let rounds =
                [1.0, 3.0].map(|round| [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|n| n * factor * round * 500.0));
            series(target, &rounds)
        };
        let measured = [of("shm", 1.0), of("null", 2.0), of("tmpfs", 8.0)].concat();
        Report {
            format: FORMAT,
            setting: setting(),
            engine: "IOzone 3.489".into(),
            command: "rfs-iozone --rounds 2".into(),
            file_size: 64 << 20,
            record_sizes: vec![65536],
            threads: 1,
            rounds: 2,
            reads_are_page_cache_hits: true,
            results: entries(&measured, &targets, |name| Some(name.to_owned())),
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
        let measured = series("shm", &[[1.0; 6]]);
        let entries = entries(&measured, &example().targets[..1], |name| Some(name.to_owned()));
        assert_eq!(entries.len(), 6);
        assert!(entries.iter().all(|entry| entry.ratio_to_null.is_none()));
    }

    #[test]
    fn the_json_form_is_stable() {
        let json = serde_json::to_string_pretty(&example()).unwrap() + "\n";
        assert_eq!(json, include_str!("../../../tests/golden/report.json"));
    }

    #[test]
    fn the_json_form_reads_back() {
        let report = example();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
