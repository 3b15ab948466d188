//! What is measured: series, their points, and what a point consists of. Pure.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    report::svg::thousands,
    size::{self, GIB, KIB, MIB},
};

/// One thing that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Series {
    /// Threads on one file, each on a part of it.
    Threads,
    /// Files, with a thread each.
    Files,
    /// Mounts of one server, with a file and a thread each.
    Mounts,
    /// The size of one file, with one thread.
    Size,
    /// The number of empty files in one directory, with one thread.
    Count,
}

/// What is done at a point, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Front to back in records of 1 MiB, and fsync.
    Write,
    /// Front to back in records of 1 MiB, of which the kernel has kept nothing.
    Read,
    /// Blocks of 4 KiB at random places, with O_DIRECT.
    RandomRead,
    /// `open` with `O_CREAT` and `O_EXCL`, and `close`.
    Create,
    /// `statx` that the kernel may not answer itself (`AT_STATX_FORCE_SYNC`).
    Stat,
    /// `unlink`.
    Unlink,
}

/// A point of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Which.
    pub series: Series,
    /// How much of what grows.
    pub load: u64,
}

/// The files of a point, and who works on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Mounts.
    pub mounts: u64,
    /// Files on each mount.
    pub files: u64,
    /// Threads on each file.
    pub threads: u64,
    /// Bytes of each file.
    pub bytes: u64,
}

/// How much is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// What grows, and how far.
    pub series: Vec<(Series, Vec<u64>)>,
    /// Rounds.
    pub rounds: u32,
    /// Bytes of all files of a point together, unless their size is what grows.
    pub bytes: u64,
    /// Milliseconds of random reads.
    pub random_ms: u32,
    /// A small number of files is created and removed again until so many were.
    pub least_files: u64,
}

impl Series {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 5] = [Self::Threads, Self::Files, Self::Mounts, Self::Size, Self::Count];

    /// Its name in options and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Files => "files",
            Self::Mounts => "mounts",
            Self::Size => "size",
            Self::Count => "count",
        }
    }

    /// What it shows.
    pub fn title(self) -> &'static str {
        match self {
            Self::Threads => "threads on one file",
            Self::Files => "files, with a thread each",
            Self::Mounts => "mounts of one server, with a file and a thread each",
            Self::Size => "size of one file",
            Self::Count => "empty files in one directory",
        }
    }

    /// What is done at its points.
    pub fn patterns(self) -> [Pattern; 3] {
        match self {
            Self::Count => [Pattern::Create, Pattern::Stat, Pattern::Unlink],
            _ => [Pattern::Write, Pattern::Read, Pattern::RandomRead],
        }
    }

    /// A load, as axes and tables have it.
    pub fn show(self, load: u64) -> String {
        match self {
            Self::Size => size::show(load),
            _ => thousands(load as f64),
        }
    }
}

impl Pattern {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "sequential write",
            Self::Read => "uncached read",
            Self::RandomRead => "4 KiB random read, O_DIRECT",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Unlink => "unlink",
        }
    }

    /// What its rate counts.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Write | Self::Read | Self::RandomRead => "MiB/s",
            Self::Create | Self::Stat | Self::Unlink => "files/s",
        }
    }
}

impl Point {
    /// For progress.
    pub fn describe(self) -> String {
        format!("{} {}", self.series.name(), self.series.show(self.load))
    }

    /// Its files of data. A size is shared by those who work on it, in whole MiB.
    pub fn shape(self, bytes: u64) -> Shape {
        let one = Shape { mounts: 1, files: 1, threads: 1, bytes };
        let share = |n: u64| (bytes / n.max(1) / MIB).max(1) * MIB;
        match self.series {
            Series::Threads => Shape { threads: self.load, bytes: share(self.load) * self.load, ..one },
            Series::Files => Shape { files: self.load, bytes: share(self.load), ..one },
            Series::Mounts => Shape { mounts: self.load, bytes: share(self.load), ..one },
            Series::Size => Shape { bytes: self.load, ..one },
            Series::Count => Shape { bytes: 0, ..one },
        }
    }

    /// Memory that it takes at its fullest: files in the server (or in the null file system) and once more in the client's
    /// page cache; of empty files what server, client and kernel keep of each; and room for the programs.
    pub fn memory(self, bytes: u64) -> u64 {
        let Shape { mounts, files, bytes, .. } = self.shape(bytes);
        match self.series {
            Series::Count => self.load.saturating_mul(4 * KIB).saturating_add(GIB),
            _ => {
                let all = bytes.saturating_mul(files).saturating_mul(mounts);
                all.saturating_mul(2).saturating_add(all / 4).saturating_add((mounts + 2) * 128 * MIB)
            }
        }
    }

    /// About how long it takes, in seconds of an ordinary machine. Only proportions matter.
    pub fn cost(self, extent: &Extent) -> f64 {
        let Shape { mounts, files, bytes, .. } = self.shape(extent.bytes);
        let start = 1.0 + 0.2 * mounts as f64;
        let gib = (bytes * files * mounts) as f64 / GIB as f64;
        match self.series {
            Series::Count => start + self.load.max(extent.least_files) as f64 * 200e-6,
            _ => start + 3.0 * gib + f64::from(extent.random_ms) / 1000.0,
        }
    }
}

/// The points that fit into that much memory, in order; and of those that do not, why.
pub fn points(extent: &Extent, available: u64) -> (Vec<Point>, Vec<String>) {
    let (mut points, mut left_out) = (Vec::new(), Vec::new());
    for (series, loads) in &extent.series {
        for &load in loads {
            let point = Point { series: *series, load };
            let memory = point.memory(extent.bytes);
            match memory <= available {
                true => points.push(point),
                false => left_out.push(format!(
                    "{} is left out: it needs {} of memory at its fullest, {} are available",
                    point.describe(),
                    size::show(memory),
                    size::show(available)
                )),
            }
        }
    }
    (points, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent() -> Extent {
        Extent {
            series: vec![(Series::Mounts, vec![1, 8]), (Series::Size, vec![64 * MIB, 8 * GIB])],
            rounds: 3,
            bytes: GIB,
            random_ms: 1000,
            least_files: 2000,
        }
    }

    #[test]
    fn a_point_divides_its_bytes() {
        let shape = |series, load| Point { series, load }.shape(GIB);
        let one = Shape { mounts: 1, files: 1, threads: 1, bytes: GIB };
        assert_eq!(shape(Series::Threads, 16), Shape { threads: 16, ..one });
        // Whole records for each thread.
        assert_eq!(shape(Series::Threads, 3), Shape { threads: 3, bytes: 341 * 3 * MIB, ..one });
        assert_eq!(shape(Series::Files, 8), Shape { files: 8, bytes: 128 * MIB, ..one });
        assert_eq!(shape(Series::Mounts, 4), Shape { mounts: 4, bytes: 256 * MIB, ..one });
        assert_eq!(shape(Series::Size, 8 * GIB), Shape { bytes: 8 * GIB, ..one });
        assert_eq!(Point { series: Series::Files, load: 8 }.shape(MIB).bytes, MIB);
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_said() {
        let point = |series, load| Point { series, load };
        let all = [
            point(Series::Mounts, 1),
            point(Series::Mounts, 8),
            point(Series::Size, 64 * MIB),
            point(Series::Size, 8 * GIB),
        ];
        assert_eq!(points(&extent(), u64::MAX), (all.to_vec(), vec![]));
        let (fit, left_out) = points(&extent(), 4 * GIB);
        assert_eq!(fit, all[..3]);
        assert_eq!(
            left_out,
            ["size 8 GiB is left out: it needs 18.4 GiB of memory at its fullest, 4 GiB are available"]
        );
    }

    #[test]
    fn more_takes_longer_and_more_memory() {
        let extent = extent();
        for series in [Series::Mounts, Series::Size, Series::Count] {
            let [less, more] = [64 * KIB, 64 * MIB].map(|load| Point { series, load });
            assert!(less.cost(&extent) < more.cost(&extent), "{series:?}");
            assert!(less.memory(GIB) < more.memory(GIB), "{series:?}");
        }
    }

    #[test]
    fn loads_are_short() {
        assert_eq!(Series::Size.show(64 * MIB), "64 MiB");
        assert_eq!(Series::Count.show(1_000_000), "1,000,000");
        assert_eq!(Point { series: Series::Threads, load: 16 }.describe(), "threads 16");
    }
}
