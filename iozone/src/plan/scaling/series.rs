//! The series, their points, and the work of a point. No I/O, no locks, no clock.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    load::Pattern,
    report::svg::thousands,
    size::{self, GIB, KIB, MIB},
};

/// A growing load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Series {
    /// Threads on one file, each on its own part.
    Threads,
    /// Files with one thread each.
    Files,
    /// Mounts of one server, with one file and one thread each.
    Mounts,
    /// The size of one file, with one thread.
    Size,
    /// The number of empty files in one directory, with one thread.
    Count,
}

/// A point of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Series that the point belongs to.
    pub series: Series,
    /// Value of the growing load, in the unit of its series.
    pub load: u64,
}

/// The files and threads of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of mounts of one server.
    pub mounts: u64,
    /// Files per mount.
    pub files: u64,
    /// Threads per file.
    pub threads: u64,
    /// Bytes per file.
    pub bytes: u64,
}

/// The extent of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The series and their loads.
    pub series: Vec<(Series, Vec<u64>)>,
    /// Rounds.
    pub rounds: u32,
    /// Bytes of all files of a point together, except in the series of file sizes.
    pub bytes: u64,
    /// Duration of random reads in milliseconds.
    pub random_ms: u32,
    /// Small numbers of files are created and removed repeatedly, until this number is reached.
    pub least_files: u64,
}

impl Series {
    /// All series, in the order of reports.
    pub const ALL: [Self; 5] = [Self::Threads, Self::Files, Self::Mounts, Self::Size, Self::Count];

    /// Returns the name in options and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Files => "files",
            Self::Mounts => "mounts",
            Self::Size => "size",
            Self::Count => "count",
        }
    }

    /// Returns the title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Threads => "threads on one file",
            Self::Files => "files, with a thread each",
            Self::Mounts => "mounts of one server, with a file and a thread each",
            Self::Size => "size of one file",
            Self::Count => "empty files in one directory",
        }
    }

    /// Returns the patterns at the points of the series.
    pub fn patterns(self) -> [Pattern; 3] {
        match self {
            Self::Count => [Pattern::Create, Pattern::Stat, Pattern::Unlink],
            _ => [Pattern::Write, Pattern::Read, Pattern::RandomRead],
        }
    }

    /// Formats a load for axes and tables.
    pub fn show(self, load: u64) -> String {
        match self {
            Self::Size => size::show(load),
            _ => thousands(load as f64),
        }
    }
}

impl Point {
    /// Returns a description for the progress display.
    pub fn describe(self) -> String {
        format!("{} {}", self.series.name(), self.series.show(self.load))
    }

    /// Returns the files of the point. Files and threads share `bytes`, in whole MiB.
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

    /// Returns the peak memory of the point. It has the files in the server (or in the null file
    /// system) and in the client's page cache, and space for the programs. For empty files it also
    /// has the state of server, client and kernel per file.
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

    /// Returns the approximate duration in seconds of a typical machine. Only the proportions
    /// matter.
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

/// Returns the points that fit into `available` bytes of memory, in order, and the reasons why
/// others do not fit.
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
        // Each thread has whole records.
        assert_eq!(shape(Series::Threads, 3), Shape { threads: 3, bytes: 341 * 3 * MIB, ..one });
        assert_eq!(shape(Series::Files, 8), Shape { files: 8, bytes: 128 * MIB, ..one });
        assert_eq!(shape(Series::Mounts, 4), Shape { mounts: 4, bytes: 256 * MIB, ..one });
        assert_eq!(shape(Series::Size, 8 * GIB), Shape { bytes: 8 * GIB, ..one });
        assert_eq!(Point { series: Series::Files, load: 8 }.shape(MIB).bytes, MIB);
    }

    #[test]
    fn points_that_do_not_fit_are_skipped_and_reported() {
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
