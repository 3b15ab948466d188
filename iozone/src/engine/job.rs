//! Jobs of a target, the columns that they produce, and the values of a reading. No I/O, no locks,
//! no clock.

use serde::{Deserialize, Serialize};

use super::fio::Access;
use crate::{
    harness,
    sample::{Latency, Phase, median},
    size,
};

/// One run of a program on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// IOzone's six phases with records of this many bytes.
    Iozone(u64),
    /// fio with O_DIRECT, random access, in blocks of this many bytes: each access of [`FIO`] in
    /// order.
    Fio(u64),
    /// fio as above, from several threads: each access of [`CALLERS`].
    Callers(u64),
}

/// Accesses of fio to one file, in order.
pub const FIO: [Access; 4] = [
    Access { write: false, depth: 1, callers: 1 },
    Access { write: false, depth: 16, callers: 1 },
    Access { write: true, depth: 1, callers: 1 },
    Access { write: true, depth: 16, callers: 1 },
];

/// Readers, then writers, in several threads with one request each. Shows merging across threads.
pub const CALLERS: [Access; 2] =
    [Access { write: false, depth: 1, callers: 4 }, Access { write: true, depth: 1, callers: 4 }];

/// A column of the tables: one value per target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Column {
    /// The access pattern.
    pub pattern: Pattern,
    /// Bytes per request.
    pub size: u64,
}

/// An access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// A phase of IOzone.
    Iozone(Phase),
    /// fio with O_DIRECT.
    Direct(Access),
}

/// The measurements of one column of one target in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Throughput in MiB/s.
    pub mib_per_s: f64,
    /// Latency, if requests are timed individually.
    pub latency: Option<Latency>,
    /// Processor seconds of the target's programs per GiB, user and system; `None` without
    /// programs.
    pub cpu_s_per_gib: Option<f64>,
    /// Processor seconds of the measuring program per GiB, including its system calls.
    pub caller_s_per_gib: Option<f64>,
}

/// One value of a [`Reading`].
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
    /// Returns the columns of the job, in the order of measurement.
    pub fn columns(self) -> Vec<Column> {
        let column = |pattern, size| Column { pattern, size };
        match self {
            Job::Iozone(size) => Phase::ALL.map(|phase| column(Pattern::Iozone(phase), size)).to_vec(),
            Job::Fio(size) | Job::Callers(size) => {
                self.accesses().iter().map(|access| column(Pattern::Direct(*access), size)).collect()
            }
        }
    }

    /// Returns the accesses of a fio job.
    pub fn accesses(self) -> &'static [Access] {
        match self {
            Job::Iozone(_) => &[],
            Job::Fio(_) => &FIO,
            Job::Callers(_) => &CALLERS,
        }
    }

    /// Returns a description for the progress display.
    pub fn describe(self) -> String {
        match self {
            Job::Iozone(size) => format!("IOzone, {} records", size::show(size)),
            Job::Fio(size) => format!("fio, {} blocks", size::show(size)),
            Job::Callers(size) => format!("fio, several callers, {} blocks", size::show(size)),
        }
    }
}

impl Pattern {
    /// Returns the name in tables, with the mark of
    /// [`PAGE_CACHE_NOTE`](crate::sample::PAGE_CACHE_NOTE) if the page cache answers the reads.
    pub fn heading(self, keeps_pages: bool) -> String {
        match self {
            Pattern::Iozone(phase) => phase.heading(keeps_pages),
            Pattern::Direct(_) => self.name(),
        }
    }

    /// Returns the name in tables.
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

impl harness::Reading for Reading {
    /// Returns the median of each value, over the rounds that have the value.
    fn median(rounds: &[Self]) -> Self {
        let of = |number: &dyn Fn(&Self) -> Option<f64>| {
            median(&rounds.iter().filter_map(number).collect::<Vec<_>>())
        };
        Self {
            mib_per_s: of(&|reading| Some(reading.mib_per_s)).unwrap_or(0.0),
            latency: Latency::median(&rounds.iter().filter_map(|r| r.latency).collect::<Vec<_>>()),
            cpu_s_per_gib: of(&|reading| reading.cpu_s_per_gib),
            caller_s_per_gib: of(&|reading| reading.caller_s_per_gib),
        }
    }

    fn rate(&self) -> f64 {
        self.mib_per_s
    }
}

impl Metric {
    /// Returns the value, if the reading has it.
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
    use crate::harness::{Reading as _, Series};

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

    #[test]
    fn medians_are_taken_number_by_number() {
        let reading = |mib_per_s, p50, cpu| Reading {
            mib_per_s,
            latency: Some(Latency { p50, p99: 7.0, p999: 8.0 }),
            cpu_s_per_gib: cpu,
            caller_s_per_gib: None,
        };
        let rounds = [reading(1.0, 9.0, Some(4.0)), reading(5.0, 1.0, None), reading(2.0, 5.0, Some(6.0))];
        assert_eq!(Reading::median(&rounds), reading(2.0, 5.0, Some(5.0)));
        assert_eq!(Series::new("a", (), rounds.to_vec()).spread, Some(2.0));
        assert_eq!(Reading::median(&[]), Reading::default());
    }
}
