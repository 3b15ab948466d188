//! Command line options.

use std::path::PathBuf;

use clap::Args;

use super::series::{Extent, Series};
use crate::{
    cli::{Common, Kind, Switches, among},
    harness::sorted,
    plan::Usual,
    size::{self, GIB, MIB},
};

/// Options of the scaling plan.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Series to measure; all if none is selected.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        value_name = "LIST"
    )]
    pub scaling: Vec<Series>,

    /// Targets to measure, in this order.
    #[arg(
        long,
        value_parser = among([Kind::Shm, Kind::Tcp, Kind::Rdma, Kind::Null, Kind::Tmpfs]),
        value_delimiter = ',',
        default_value = "shm,tcp,null",
        value_name = "LIST"
    )]
    pub providers: Vec<Kind>,

    /// Numbers of threads on one file [default: 1,2,4,8,16].
    #[arg(long, value_delimiter = ',', value_parser = some, value_name = "LIST")]
    pub threads: Vec<u64>,

    /// Numbers of files [default: 1,2,4,8].
    #[arg(long, value_delimiter = ',', value_parser = some, value_name = "LIST")]
    pub files: Vec<u64>,

    /// Numbers of mounts [default: 1,2,4,8].
    #[arg(long, value_delimiter = ',', value_parser = some, value_name = "LIST")]
    pub mounts: Vec<u64>,

    /// Sizes of a file [default: 64m,256m,1g,4g,8g].
    #[arg(long, value_delimiter = ',', value_parser = whole_mib, value_name = "LIST")]
    pub sizes: Vec<u64>,

    /// Numbers of empty files [default: 1,10,100,1000,10000,100000,1000000].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=9_999_999), value_name = "LIST")]
    pub counts: Vec<u64>,

    /// Bytes of all files of a point together, except in the series of file sizes [default: 1g].
    #[arg(long, value_parser = whole_mib, value_name = "SIZE")]
    pub size: Option<u64>,

    /// How long random reads are measured, in milliseconds [default: 1000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=600_000))]
    pub random_ms: Option<u32>,

    /// Also write the report to this directory, as README.md with its charts. Fails if the source
    /// tree differs from its commit.
    #[arg(long, value_name = "DIR")]
    pub document: Option<PathBuf>,

    /// Options of every plan.
    #[command(flatten)]
    pub common: Common,

    /// Options of the runtime and of the mount.
    #[command(flatten)]
    pub switches: Switches,
}

fn some(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number @ 1..=256) => Ok(number),
        _ => Err("a number from 1 to 256 is needed".into()),
    }
}

fn whole_mib(text: &str) -> Result<u64, String> {
    let bytes = size::parse_nonzero(text).map_err(|err| err.to_string())?;
    if bytes.is_multiple_of(MIB) { Ok(bytes) } else { Err("whole MiB are needed".into()) }
}

impl Options {
    /// Returns the extent of the measurement. Sorts the loads of each series.
    pub fn extent(&self) -> Extent {
        let common = &self.common;
        let loads = |series: Series| {
            let (given, usual, quick): (_, &[u64], &[u64]) = match series {
                Series::Threads => (&self.threads, &[1, 2, 4, 8, 16], &[1, 2]),
                Series::Files => (&self.files, &[1, 2, 4, 8], &[1, 2]),
                Series::Mounts => (&self.mounts, &[1, 2, 4, 8], &[1, 2]),
                Series::Size => {
                    (&self.sizes, &[64 * MIB, 256 * MIB, GIB, 4 * GIB, 8 * GIB], &[4 * MIB, 8 * MIB])
                }
                Series::Count => (&self.counts, &[1, 10, 100, 1000, 10_000, 100_000, 1_000_000], &[1, 100]),
            };
            (series, sorted(Usual(usual, quick).of(given, common.quick)))
        };
        let wanted = |series: &Series| self.scaling.is_empty() || self.scaling.contains(series);
        Extent {
            series: Series::ALL.into_iter().filter(wanted).map(loads).collect(),
            rounds: common.rounds(3),
            bytes: common.usual(self.size, GIB, 8 * MIB),
            random_ms: common.usual(self.random_ms, 1000, 50),
            least_files: common.usual(None, 5000, 100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    fn options(args: &[&str]) -> Options {
        parse(args).unwrap()
    }

    #[test]
    fn all_of_it_or_some() {
        for all in [&[][..], &["--scaling"]] {
            let extent = options(all).extent();
            assert_eq!(extent.series.iter().map(|(series, _)| *series).collect::<Vec<_>>(), Series::ALL);
            assert_eq!((extent.rounds, extent.bytes, extent.random_ms), (3, GIB, 1000));
            assert_eq!(extent.series[0].1, [1, 2, 4, 8, 16]);
            assert_eq!(extent.series[4].1.last(), Some(&1_000_000));
        }
        let some = options(&["--scaling=count,files", "--files=8,1,8", "--rounds=2"]).extent();
        assert_eq!(some.series[0], (Series::Files, vec![1, 8]));
        assert_eq!((some.series[1].0, some.series.len(), some.rounds), (Series::Count, 2, 2));
    }

    #[test]
    fn given_options_override_quick() {
        let extent = options(&["--quick", "--mounts=3", "--size=2m"]).extent();
        assert_eq!((extent.rounds, extent.bytes, extent.random_ms), (1, 2 * MIB, 50));
        assert_eq!(extent.series[2], (Series::Mounts, vec![3]));
        assert_eq!(extent.series[3], (Series::Size, vec![4 * MIB, 8 * MIB]));
    }

    #[test]
    fn invalid_options_are_refused() {
        for arg in
            ["--threads=0", "--sizes=100k", "--counts=0", "--scaling=speed", "--providers=nfs", "--rounds=0"]
        {
            assert!(parse::<Options>(&[arg]).is_err(), "{arg}");
        }
    }
}
