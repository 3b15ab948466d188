//! Command line options. This module only parses; `size` and `runner` check them against the
//! machine.

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    places::{Output, Places},
    size,
};

/// Measure rfs with IOzone, and compare it with its ceilings.
///
/// Starts rfs-server and rfs-fuse, runs IOzone on the mount (write, rewrite, read, reread, random
/// read, random write; flush time counts), prints one table per provider, writes JSON and an SVG
/// chart, and leaves no process, mount or file behind.
#[derive(Debug, Parser)]
#[command(
    name = "rfs-iozone",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "iozone/run --compare measures rfs beside its ceilings and other file systems: iozone/run --compare --help"
)]
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
    /// Run the access patterns on files and print a line per phase.
    #[command(hide = true)]
    BuiltinWorker(crate::engine::builtin::Job),
}

/// A target of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TargetKind {
    /// rfs over shared memory.
    Shm,
    /// rfs over TCP on loopback.
    Tcp,
    /// rfs over RDMA, on a device of this machine.
    Rdma,
    /// A FUSE file system that copies to and from its own memory: the ceiling for FUSE.
    Null,
    /// A directory in memory without FUSE: the ceiling of the machine.
    Tmpfs,
}

/// The measuring engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// IOzone if it is installed, else the built-in engine.
    Auto,
    /// IOzone.
    Iozone,
    /// The built-in engine with IOzone's access patterns.
    Builtin,
}

/// Options of a benchmark run.
#[derive(Clone, Debug, Args)]
pub struct Bench {
    /// Targets to measure, in this order.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "shm,tcp,null,tmpfs",
        value_name = "LIST"
    )]
    pub providers: Vec<TargetKind>,

    /// Mount the server at this address (unix:/path, tcp:host:port, rdma:host:port) instead of
    /// starting one; once for each of shm, tcp and rdma in the list of providers. The server needs
    /// twice the size of the files.
    #[arg(long, value_name = "ADDRESS")]
    pub connect: Vec<String>,

    /// Record sizes: numbers of bytes, or of powers of 1024 [default: 4k,64k,128k,1m].
    #[arg(long, value_delimiter = ',', value_parser = size::parse_nonzero, value_name = "LIST")]
    pub record_sizes: Vec<u64>,

    /// File size [default: an eighth of the available memory, at most 1g, rounded to a power of
    /// two].
    #[arg(long, value_parser = size::parse_nonzero, value_name = "SIZE")]
    pub file_size: Option<u64>,

    /// Repeat everything, in alternating order, and report medians.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Number of concurrent processes, each with its own file; throughput is their sum.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,

    /// Run a short test of everything: 64 MiB files, records of 64 KiB and 1 MiB.
    #[arg(long)]
    pub quick: bool,

    /// Measuring engine.
    #[arg(long, value_enum, default_value_t = EngineKind::Auto)]
    pub engine: EngineKind,

    /// Output options.
    #[command(flatten)]
    pub output: Output,

    /// Locations of programs and files.
    #[command(flatten)]
    pub places: Places,

    /// Time limit for one run of the engine, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub timeout: u64,

    /// Options of the runtime and of the mount.
    #[command(flatten)]
    pub switches: Switches,
}

impl Bench {
    /// Returns the record sizes to run.
    pub fn records(&self) -> Vec<u64> {
        match (self.record_sizes.as_slice(), self.quick) {
            ([], false) => vec![4 * size::KIB, 64 * size::KIB, 128 * size::KIB, size::MIB],
            ([], true) => vec![64 * size::KIB, size::MIB],
            (given, _) => given.to_vec(),
        }
    }

    /// Returns the file size for a machine with `available` bytes of memory.
    pub fn file_size(&self, available: u64) -> u64 {
        match (self.file_size, self.quick) {
            (Some(given), _) => given,
            (None, true) => 64 * size::MIB,
            (None, false) => size::default_file_size(available, self.threads),
        }
    }
}

/// Options passed on to rfs-fuse, which checks their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Switches of the runtime (handed to rfs-fuse, which explains and checks them)")]
pub struct Switches {
    /// Combining of requests.
    #[arg(long, value_name = "MODE")]
    pub batch: Option<String>,
    /// Queue pairs per peer.
    #[arg(long, value_name = "N")]
    pub queue_pairs: Option<String>,
    /// Bytes in flight.
    #[arg(long, value_name = "BYTES")]
    pub window: Option<String>,
    /// Requests up to this size are copied into registered memory.
    #[arg(long, value_name = "BYTES")]
    pub pre_mr_threshold: Option<String>,
    /// Polling mode for completions.
    #[arg(long, value_name = "MODE")]
    pub polling: Option<String>,
    /// Empty polls before an adaptive poller sleeps.
    #[arg(long, value_name = "N")]
    pub max_retry: Option<String>,
    /// Largest FUSE write (also passed to the null file system).
    #[arg(long, value_name = "BYTES")]
    pub max_write: Option<String>,
    /// Read-ahead of the kernel in bytes (also passed to the null file system).
    #[arg(long, value_name = "BYTES")]
    pub max_readahead: Option<String>,
    /// FUSE session threads: `--threads` of rfs-fuse (also passed to the null file system).
    #[arg(long, value_name = "N")]
    pub fuse_threads: Option<String>,
    /// Kernel caching: auto, none or writeback (also passed to the null file system).
    #[arg(long, value_name = "MODE")]
    pub cache: Option<String>,
    /// Disable the page cache (also passed to the null file system).
    #[arg(long)]
    pub direct_io: bool,
    /// Prefault all memory of the server (passed to rfs-server).
    #[arg(long)]
    pub prefault: bool,
    /// Other options of rfs-fuse: all arguments after `--`.
    #[arg(last = true, value_name = "RFS-FUSE OPTION")]
    pub extra: Vec<String>,
}

impl Switches {
    /// Returns true if the kernel caches pages of these mounts.
    pub fn keep_pages(&self) -> bool {
        !self.direct_io && self.cache.as_deref() != Some("none")
    }

    /// Returns the arguments for a mount of the null file system: only those that concern FUSE.
    pub fn fuse_args(&self) -> Vec<String> {
        let mut args = pairs(&[
            ("--max-write", &self.max_write),
            ("--max-readahead", &self.max_readahead),
            ("--threads", &self.fuse_threads),
            ("--cache", &self.cache),
        ]);
        args.extend(self.direct_io.then(|| "--direct-io".to_owned()));
        args
    }

    /// Returns all arguments for a mount of rfs.
    pub fn all_args(&self) -> Vec<String> {
        let mut args = pairs(&[
            ("--batch", &self.batch),
            ("--queue-pairs", &self.queue_pairs),
            ("--window", &self.window),
            ("--pre-mr-threshold", &self.pre_mr_threshold),
            ("--polling", &self.polling),
            ("--max-retry", &self.max_retry),
        ]);
        args.extend(self.fuse_args());
        args.extend(self.extra.iter().cloned());
        args
    }
}

/// Returns the command line name of an option value.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn pairs(options: &[(&str, &Option<String>)]) -> Vec<String> {
    options
        .iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| [(*name).to_owned(), value.clone()]))
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn bench(args: &[&str]) -> Bench {
        Cli::try_parse_from([&["rfs-iozone"], args].concat()).unwrap().bench
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_default_run() {
        let bench = bench(&[]);
        assert_eq!(bench.providers, [TargetKind::Shm, TargetKind::Tcp, TargetKind::Null, TargetKind::Tmpfs]);
        assert_eq!(bench.records(), [4096, 65536, 131_072, 1 << 20]);
        assert_eq!(bench.file_size(64 << 30), 1 << 30);
        assert_eq!(bench.switches, Switches::default());
    }

    #[test]
    fn given_options_override_quick() {
        assert_eq!(bench(&["--quick"]).records(), [65536, 1 << 20]);
        assert_eq!(bench(&["--quick"]).file_size(64 << 30), 64 << 20);
        let both = bench(&["--quick", "--record-sizes", "4k,16k", "--file-size", "32m"]);
        assert_eq!((both.records(), both.file_size(0)), (vec![4096, 16384], 32 << 20));
    }

    #[test]
    fn switches_are_passed_on() {
        let bench = bench(&[
            "--batch",
            "none",
            "--max-write=128k",
            "--direct-io",
            "--polling",
            "busy",
            "--fuse-threads=4",
            "--cache=writeback",
            "--",
            "--new-switch",
            "7",
        ]);
        assert_eq!(
            bench.switches.fuse_args(),
            ["--max-write", "128k", "--threads", "4", "--cache", "writeback", "--direct-io"]
        );
        assert_eq!(
            bench.switches.all_args(),
            [
                "--batch",
                "none",
                "--polling",
                "busy",
                "--max-write",
                "128k",
                "--threads",
                "4",
                "--cache",
                "writeback",
                "--direct-io",
                "--new-switch",
                "7"
            ]
        );
    }

    #[test]
    fn invalid_options_are_refused() {
        // Missing servers are reported later, when the targets are made.
        assert_eq!(
            bench(&["--connect", "rdma:h:1", "--connect", "tcp:h:2"]).connect,
            ["rdma:h:1", "tcp:h:2"]
        );
        for args in [["--rounds", "0"], ["--providers", "nfs"], ["--file-size", "x"], ["--threads", "0"]] {
            assert!(Cli::try_parse_from([&["rfs-iozone"][..], &args].concat()).is_err(), "{args:?}");
        }
    }
}
