//! What is measured of a target: jobs, the columns of figures that they give, and what a figure consists of. Pure.

use serde::{Deserialize, Serialize};

use crate::{
    sample::{Latency, Phase},
    size,
};

/// One run of a program on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// IOzone's six phases with records of that many bytes.
    Iozone(u64),
    /// fio with O_DIRECT, at random, in blocks of that many bytes: [`FIO`], one after the other.
    Fio(u64),
    /// The same from several threads: [`CALLERS`].
    Callers(u64),
}

/// What fio does with one file, in order.
pub const FIO: [Access; 4] = [
    Access { write: false, depth: 1, callers: 1 },
    Access { write: false, depth: 16, callers: 1 },
    Access { write: true, depth: 1, callers: 1 },
    Access { write: true, depth: 16, callers: 1 },
];

/// Readers, then writers, in several threads: what there is to merge where each asks one thing at a time.
pub const CALLERS: [Access; 2] =
    [Access { write: false, depth: 1, callers: 4 }, Access { write: true, depth: 1, callers: 4 }];

/// Random access past the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Access {
    /// Writes; else reads.
    pub write: bool,
    /// Requests at a time, of each caller.
    pub depth: u32,
    /// Threads that make them.
    #[serde(default = "one")]
    pub callers: u32,
}

/// In results from before there were more.
fn one() -> u32 {
    1
}

/// A column of figures, one of each target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Column {
    /// Who makes the requests, and which.
    pub pattern: Pattern,
    /// Bytes of each.
    pub size: u64,
}

/// A way to make requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// A phase of IOzone.
    Iozone(Phase),
    /// fio with O_DIRECT.
    Direct(Access),
}

/// What was measured in one column of one target in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// MiB a second.
    pub mib_per_s: f64,
    /// Where requests are timed one by one.
    pub latency: Option<Latency>,
    /// Processor seconds that the target's programs took for each GiB, user and system; `None` without programs.
    pub cpu_s_per_gib: Option<f64>,
    /// Those of the program that measures, with what the kernel does for it in its system calls.
    pub caller_s_per_gib: Option<f64>,
}

/// One number of a [`Reading`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// MiB/s.
    Throughput,
    /// Median latency.
    P50,
    /// Processor time of the target's programs.
    Cpu,
}

impl Job {
    /// Its columns, in the order in which they are measured.
    pub fn columns(self) -> Vec<Column> {
        let column = |pattern, size| Column { pattern, size };
        match self {
            Job::Iozone(size) => Phase::ALL.map(|phase| column(Pattern::Iozone(phase), size)).to_vec(),
            Job::Fio(size) | Job::Callers(size) => {
                self.accesses().iter().map(|access| column(Pattern::Direct(*access), size)).collect()
            }
        }
    }

    /// What fio does, if it is one of fio's.
    pub fn accesses(self) -> &'static [Access] {
        match self {
            Job::Iozone(_) => &[],
            Job::Fio(_) => &FIO,
            Job::Callers(_) => &CALLERS,
        }
    }

    /// For progress.
    pub fn describe(self) -> String {
        match self {
            Job::Iozone(size) => format!("IOzone, {} records", size::show(size)),
            Job::Fio(size) => format!("fio, {} blocks", size::show(size)),
            Job::Callers(size) => format!("fio, several callers, {} blocks", size::show(size)),
        }
    }
}

impl Pattern {
    /// Returns its name in tables, with the mark of [`PAGE_CACHE_NOTE`](crate::sample::PAGE_CACHE_NOTE) if the kernel answers
    /// it from pages.
    pub fn heading(self, keeps_pages: bool) -> String {
        match self {
            Pattern::Iozone(phase) => phase.heading(keeps_pages),
            Pattern::Direct(_) => self.name(),
        }
    }

    /// Its name in tables.
    pub fn name(self) -> String {
        match self {
            Pattern::Iozone(phase) => phase.name().to_owned(),
            Pattern::Direct(Access { write, depth, callers }) => {
                let what = if write { "write" } else { "read" };
                match callers {
                    1 => format!("O_DIRECT {what}, depth {depth}"),
                    _ => format!("O_DIRECT {what}, {callers} callers"),
                }
            }
        }
    }
}

impl Metric {
    /// That number, if there is one.
    pub fn of(self, reading: &Reading) -> Option<f64> {
        match self {
            Metric::Throughput => Some(reading.mib_per_s),
            Metric::P50 => reading.latency.map(|latency| latency.p50),
            Metric::Cpu => reading.cpu_s_per_gib,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_gives_its_columns_in_order() {
        let names = |job: Job| job.columns().iter().map(|column| column.pattern.name()).collect::<Vec<_>>();
        assert_eq!(names(Job::Iozone(4096)), Phase::ALL.map(Phase::name));
        assert_eq!(
            names(Job::Fio(4096)),
            [
                "O_DIRECT read, depth 1",
                "O_DIRECT read, depth 16",
                "O_DIRECT write, depth 1",
                "O_DIRECT write, depth 16"
            ]
        );
        assert_eq!(names(Job::Callers(4096)), ["O_DIRECT read, 4 callers", "O_DIRECT write, 4 callers"]);
        assert_eq!(Job::Fio(1 << 20).describe(), "fio, 1 MiB blocks");
        assert!(Job::Iozone(65536).columns().iter().all(|column| column.size == 65536));
    }

    #[test]
    fn metrics_pick_their_number() {
        let latency = Some(Latency { p50: 2.0, p99: 3.0, p999: 4.0 });
        let reading = Reading { mib_per_s: 1.0, latency, cpu_s_per_gib: Some(5.0), caller_s_per_gib: None };
        let all = [Metric::Throughput, Metric::P50, Metric::Cpu].map(|metric| metric.of(&reading));
        assert_eq!(all, [Some(1.0), Some(2.0), Some(5.0)]);
        assert_eq!(Metric::Cpu.of(&Reading::default()), None);
    }
}
