//! Command line options.

use clap::{Args, ValueEnum};

use crate::{
    cli::{Common, Kind, among},
    engine::EngineKind,
    plan::IOZONE_RECORDS,
    size,
};

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Everything.
    All,
    /// With a FUSE file system that only copies: the ceiling for FUSE.
    Null,
    /// With a directory in memory without FUSE.
    Tmpfs,
    /// With GlusterFS, MooseFS and sshfs.
    Peers,
    /// With GlusterFS.
    Glusterfs,
    /// With MooseFS.
    Moosefs,
    /// With sshfs.
    Sshfs,
    /// With rfs without its optimizations (on TCP): one request at a time and one queue pair. The
    /// four targets combine preMR or dynMR with events or busy polling.
    Plain,
    /// With rfs without one optimization, for each optimization (on TCP).
    Ablation,
    /// With IOzone, on mounts with the default caching.
    Iozone,
    /// With IOzone, on mounts without kernel caching: `--cache none`.
    Uncached,
    /// With IOzone and its smallest records, on mounts that also cache writes: `--cache writeback`.
    Writeback,
    /// With fio: O_DIRECT, latencies.
    Fio,
}

/// Options of a comparison.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Targets to compare with, and ways to measure; all if none is selected.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_value = "all",
        default_missing_value = "all",
        value_name = "LIST"
    )]
    pub compare: Vec<Group>,

    /// Providers of rfs.
    #[arg(
        long,
        value_parser = among([Kind::Shm, Kind::Tcp, Kind::None]),
        value_delimiter = ',',
        default_value = "shm,tcp",
        value_name = "LIST"
    )]
    pub providers: Vec<Kind>,

    /// Size of the file [default: 128m].
    #[arg(long, alias = "file-size", value_parser = size::parse_nonzero, value_name = "SIZE")]
    pub size: Option<u64>,

    /// Records of IOzone [default: 4k,64k,128k,1m].
    #[arg(long, value_delimiter = ',', value_parser = size::parse_nonzero, value_name = "LIST")]
    pub record_sizes: Vec<u64>,

    /// How long fio measures each access, in milliseconds [default: 1000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=600_000))]
    pub fio_ms: Option<u32>,

    /// Program in the role of IOzone.
    #[arg(long, value_enum, default_value_t = EngineKind::Auto)]
    pub engine: EngineKind,

    /// Options of every plan.
    #[command(flatten)]
    pub common: Common,
}

/// Extent of the measurement: options with their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Rounds.
    pub rounds: u32,
    /// Bytes of the file.
    pub size: u64,
    /// Records of IOzone.
    pub records: Vec<u64>,
    /// Block sizes of fio.
    pub blocks: Vec<u64>,
    /// Milliseconds of each access of fio.
    pub fio_ms: u32,
    /// Milliseconds for which idle programs are observed.
    pub idle_ms: u64,
}

impl Options {
    /// Returns the extent of the measurement.
    pub fn extent(&self) -> Extent {
        let common = &self.common;
        Extent {
            rounds: common.rounds(5),
            size: common.usual(self.size, 128 * size::MIB, 8 * size::MIB),
            records: IOZONE_RECORDS.of(&self.record_sizes, common.quick),
            blocks: vec![4 * size::KIB, size::MIB],
            fio_ms: common.usual(self.fio_ms, 1000, 50),
            idle_ms: common.usual(None, 3000, 200),
        }
    }

    /// Returns true if a part is selected, directly or through its group.
    pub fn wants(&self, group: Group) -> bool {
        let all = |groups: &[Group]| groups.iter().all(|group| !self.compare.contains(group));
        let beside = [
            Group::Null,
            Group::Tmpfs,
            Group::Peers,
            Group::Glusterfs,
            Group::Moosefs,
            Group::Sshfs,
            Group::Plain,
            Group::Ablation,
        ];
        let with = [Group::Iozone, Group::Uncached, Group::Writeback, Group::Fio];
        let peer = matches!(group, Group::Glusterfs | Group::Moosefs | Group::Sshfs);
        self.compare.contains(&Group::All)
            || self.compare.contains(&group)
            || (peer && self.compare.contains(&Group::Peers))
            || (beside.contains(&group) && all(&beside))
            || (with.contains(&group) && all(&with))
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
    fn parts_are_chosen() {
        let wanted = |args: &[&str]| {
            let options = options(args);
            Group::value_variants().iter().copied().filter(|group| options.wants(*group)).collect::<Vec<_>>()
        };
        for all in [&[][..], &["--compare"], &["--compare=all"], &["--compare=all,null"]] {
            assert_eq!(wanted(all), Group::value_variants(), "{all:?}");
        }
        assert_eq!(
            wanted(&["--compare=null,peers,fio"]),
            [Group::Null, Group::Peers, Group::Glusterfs, Group::Moosefs, Group::Sshfs, Group::Fio]
        );
        // Without a way to measure, all ways are used. Without a target, all targets are used.
        assert_eq!(
            wanted(&["--compare=sshfs"]),
            [Group::Sshfs, Group::Iozone, Group::Uncached, Group::Writeback, Group::Fio]
        );
        assert_eq!(wanted(&["--compare=fio"]).len(), 9);
    }

    #[test]
    fn extents() {
        let all = options(&[]).extent();
        assert_eq!((all.rounds, all.size, all.records.len(), all.fio_ms), (5, 128 << 20, 4, 1000));
        let quick = options(&["--quick"]).extent();
        assert_eq!((quick.rounds, quick.size, quick.records.len(), quick.fio_ms), (1, 8 << 20, 2, 50));
        let both =
            options(&["--quick", "--rounds=2", "--size=1m", "--record-sizes=4k", "--fio-ms=70"]).extent();
        assert_eq!((both.rounds, both.size, both.records, both.fio_ms), (2, 1 << 20, vec![4096], 70));
        for args in [["--rounds", "0"], ["--compare=nfs", "--quick"], ["--size", "0"]] {
            assert!(parse::<Options>(&args).is_err(), "{args:?}");
        }
    }
}
