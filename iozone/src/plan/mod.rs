//! The plans: measurements, their targets, and their reports.
//!
//! Each plan has its options, builds a [`Plan`](crate::harness::Plan), and turns the results into
//! tables, JSON and charts. The [`harness`](crate::harness) runs them all.

pub mod compare;
pub mod figure;
pub mod fresh;
pub mod names;
pub mod native;
pub mod run;
pub mod scaling;
pub mod stores;

use std::io::stdout;

use clap::{Parser, Subcommand};

use crate::{
    Error, Result,
    cli::Kind,
    harness::Entrant,
    load::Load,
    size::{KIB, MIB},
    target::{self, Setup},
};

/// Measure rfs beside its ceilings and other file systems.
#[derive(Debug, Parser)]
#[command(name = "rfs-iozone", bin_name = "iozone/run", version, propagate_version = true)]
pub struct Cli {
    /// The plan.
    #[command(subcommand)]
    pub command: Command,
}

/// A plan, or a load in a child process.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure rfs with IOzone, and compare it with its ceilings.
    ///
    /// Starts rfs-server and rfs-fuse, and runs IOzone on the mount: write, rewrite, read, reread,
    /// random read, random write. The time of the flush counts. Prints one table per provider, and
    /// writes JSON and an SVG chart. Leaves no process, mount or file behind.
    #[command(
        after_help = "Other plans: iozone/run --compare, --scaling, --scaling=stores, --fresh, --names, --native, \
                            --figure 12; --help after one lists its options"
    )]
    Run(run::Options),
    /// Measure rfs, and compare it with its ceilings, other file systems, and rfs without its
    /// optimizations.
    ///
    /// Prints throughput, latency, processor time and memory, with ratios of medians over
    /// interleaved rounds. Writes JSON with all rounds, charts and a log. Leaves no process, mount
    /// or file behind. Targets that are not installed are skipped and reported.
    Compare(compare::Options),
    /// Measure how rfs scales with threads, files, mounts, file size and number of files.
    ///
    /// Prints throughput, latencies and memory at every point, for rfs and for a file system that
    /// only copies. Reports points where a larger load has a lower rate. Writes JSON with all
    /// rounds, a report and charts. Leaves no process, mount or file behind.
    Scaling(scaling::Options),
    /// Measure how rfs scales with the number of stores, each with a link of a limited rate.
    ///
    /// Starts servers and stores in network namespaces, and limits their links with HTB. Measures
    /// one large file, several mounts, blocks of 4 KiB, and loopback without limits. Prints the
    /// rates with their ratios to one store and the requirements. Writes JSON with all rounds and a
    /// chart. Leaves no process, mount or file behind. Needs root.
    Stores(Box<stores::Options>),
    /// Measure the start of a server with much memory, and the cost of the first use of its memory.
    ///
    /// Each round starts a server and a mount, and writes a file five times. The first write goes
    /// to unused memory, while the server is still allocating in the background. The others go to
    /// the same memory. Prints seconds and throughput and checks them against requirements. Leaves
    /// no process, mount or file behind.
    Fresh(fresh::Options),
    /// Measure how fast files are created, looked up, listed and removed on rfs, its ceilings and
    /// GlusterFS.
    ///
    /// Prints files per second and the requests to the server per file, and checks the rates
    /// against requirements. Leaves no process, mount or file behind. GlusterFS must be installed
    /// and needs root.
    Names(names::Options),
    /// Measure access without the kernel: the native API and the preload library, beside mounts and
    /// tmpfs.
    ///
    /// Prints one table per provider with ratios; writes JSON, a chart and a log; and leaves no
    /// process, mount or file behind.
    Native(native::Options),
    /// Measure rfs with the switches of the systems in Fig. 12 of the RDMAbox paper.
    ///
    /// The systems are plain verbs, Accelio, UCX, libfabric, Octopus, GlusterFS and RDMAbox itself.
    /// Prints one table per provider and phase, each row beside the gain that the paper claims.
    /// Writes JSON, a chart per provider and a log. Leaves no process, mount or file behind.
    Figure(figure::Options),
    /// Create a load; a plan starts it as a child process.
    #[command(hide = true, subcommand)]
    Load(Load),
}

impl Command {
    /// Performs the command. Returns false if the results are to be checked and miss a requirement.
    pub fn perform(&self) -> Result<bool> {
        match self {
            Command::Run(options) => options.perform(),
            Command::Compare(options) => options.perform(),
            Command::Scaling(options) => options.perform(),
            Command::Stores(options) => options.perform(),
            Command::Fresh(options) => options.perform(),
            Command::Names(options) => options.perform(),
            Command::Native(options) => options.perform(),
            Command::Figure(options) => options.perform(),
            Command::Load(load) => load.perform(&mut stdout()).map(|()| true),
        }
    }
}

/// Values of a list option: the usual ones, and those of a quick run.
struct Usual<'a>(&'a [u64], &'a [u64]);

impl Usual<'_> {
    /// Returns the given values, or the default.
    fn of(&self, given: &[u64], quick: bool) -> Vec<u64> {
        match (given, quick) {
            ([], false) => self.0.to_vec(),
            ([], true) => self.1.to_vec(),
            (given, _) => given.to_vec(),
        }
    }
}

/// Record sizes of IOzone.
const IOZONE_RECORDS: Usual<'_> = Usual(&[4 * KIB, 64 * KIB, 128 * KIB, MIB], &[64 * KIB, MIB]);

/// Returns the values without duplicates.
fn unique<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut unique = Vec::new();
    for value in values {
        if !unique.contains(value) {
            unique.push(*value);
        }
    }
    unique
}

/// Returns the targets of these kinds, without duplicates, each with these tests.
fn entrants<T: Copy>(kinds: &[Kind], setup: &Setup, tests: &[T]) -> Result<Vec<Entrant<T>>> {
    let targets = unique(kinds).into_iter().filter_map(|kind| target::of(kind, setup).transpose());
    targets.map(|target| Ok(Entrant::new(target?, tests.to_vec()))).collect()
}

/// Returns an error if there is nothing to measure.
fn require<T>(chosen: &[T]) -> Result<()> {
    match chosen.is_empty() {
        true => Err(Error::Usage("of all that was chosen there is nothing to measure".into())),
        false => Ok(()),
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
}
