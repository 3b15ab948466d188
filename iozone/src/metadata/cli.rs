//! Command line options.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::step::{Action, Shape};
use crate::{cli::Switches, places::Places};

/// Measure how fast files are created, looked up, listed and removed on rfs, its ceilings and
/// GlusterFS.
///
/// Prints files per second and the requests to the server per file, and checks the rates against
/// requirements. Leaves no process, mount or file behind. GlusterFS must be installed and needs
/// root.
#[derive(Debug, Parser)]
#[command(name = "iozone/run", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Internal commands.
    #[command(subcommand)]
    pub command: Option<Internal>,
    /// The benchmark.
    #[command(flatten)]
    pub bench: Bench,
}

/// Internal commands of the program.
#[derive(Debug, Subcommand)]
pub enum Internal {
    /// Perform one action on many files and print the seconds that it took.
    #[command(hide = true)]
    Worker(Work),
}

/// The task of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Work {
    /// Parent directory.
    #[arg(long)]
    pub dir: PathBuf,
    /// Number of files.
    #[arg(long)]
    pub files: usize,
    /// Layout of the directories.
    #[arg(long, value_enum)]
    pub shape: Shape,
    /// Action.
    #[arg(long, value_enum)]
    pub action: Action,
    /// Number of threads that share the files.
    #[arg(long)]
    pub threads: usize,
}

/// A target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TargetKind {
    /// rfs over shared memory.
    Shm,
    /// rfs over TCP on loopback.
    Tcp,
    /// A FUSE file system in the memory of its own process: the ceiling for FUSE.
    Null,
    /// A directory in memory without FUSE: the ceiling of the machine.
    Tmpfs,
    /// GlusterFS with one brick on a tmpfs, on loopback.
    Glusterfs,
}

/// Options.
#[derive(Clone, Debug, Args)]
pub struct Bench {
    /// Measure operations on names of many small files.
    #[arg(long)]
    pub names: bool,

    /// Targets to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "shm,tcp,null,tmpfs,glusterfs",
        value_name = "LIST"
    )]
    pub targets: Vec<TargetKind>,

    /// Files to create, look up and remove.
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = count)]
    pub files: usize,

    /// Files in the listed directory; skipped for GlusterFS, which would take minutes to create
    /// them.
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = count)]
    pub listed: usize,

    /// Repeat everything, in alternating order, and report medians.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Number of threads that share the files.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,

    /// Run a short test of everything: one round of 1000 files, 5000 listed.
    #[arg(long)]
    pub quick: bool,

    /// Exit with status 1 if a rate misses its requirement.
    #[arg(long)]
    pub check: bool,

    /// Locations of programs and files.
    #[command(flatten)]
    pub places: Places,

    /// The source tree, for the commit in the output.
    #[arg(long, value_name = "DIR", hide = true, default_value = ".")]
    pub source: PathBuf,

    /// Time limit for one step, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub timeout: u64,

    /// Options of the runtime and of the mount.
    #[command(flatten)]
    pub switches: Switches,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=10_000_000) => Ok(count),
        _ => Err("a number of files from 1 to 10000000 is needed".into()),
    }
}

impl Bench {
    /// Applies `--quick`.
    #[must_use]
    pub fn settled(self) -> Bench {
        if self.quick { Bench { files: 1000, listed: 5000, rounds: 1, ..self } } else { self }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_and_quick() {
        let bench =
            |args: &[&str]| Cli::try_parse_from([&["x", "--names"], args].concat()).unwrap().bench.settled();
        let all = bench(&[]);
        assert_eq!((all.files, all.listed, all.rounds, all.targets.len()), (20_000, 100_000, 3, 5));
        let quick = bench(&["--quick", "--targets", "shm,tcp"]);
        assert_eq!((quick.files, quick.listed, quick.rounds, quick.targets.len()), (1000, 5000, 1, 2));
        for args in [["--files", "0"], ["--rounds", "0"], ["--targets", "nfs"]] {
            assert!(Cli::try_parse_from([&["x"][..], &args].concat()).is_err(), "{args:?}");
        }
    }
}
