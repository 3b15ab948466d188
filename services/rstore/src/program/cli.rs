//! Command line of `rstore`. It parses options and starts nothing.
//!
//! # Concurrency
//! Plain values.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use rdmabox::Address;
use service_program::LogOptions;

/// A DRAM store over the memory of many machines.
///
/// One master keeps names and places, any number of stores lend memory, and programs read and write
/// that memory directly. A small pool on one machine:
///
///   rstore master --listen unix:/tmp/master.sock --chunk 1m &
///   rstore store --master unix:/tmp/master.sock --memory 1g --listen unix:/tmp/store1.sock &
///   rstore store --master unix:/tmp/master.sock --memory 1g --listen unix:/tmp/store2.sock &
///   rstore status unix:/tmp/master.sock
///   rstore sort unix:/tmp/master.sock --records 100000
#[derive(Debug, Parser)]
#[command(name = "rstore", version, verbatim_doc_comment)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub log: LogOptions,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the master until SIGTERM or Ctrl-C.
    ///
    /// Prints its addresses, one per line, and then a line that begins with "ready:".
    Master(MasterOptions),
    /// Lends memory of this machine until SIGTERM or Ctrl-C.
    ///
    /// Prints its addresses, one per line, and then a line that begins with "ready:". The store
    /// registers at the master in the background, and again if the master restarts.
    Store(StoreOptions),
    /// Shows the stores and the use of their memory.
    Status(StatusOptions),
    /// Sorts generated records in the memory of a pool, and validates the result.
    Sort(SortOptions),
    /// Computes PageRank of a generated graph in the memory of a pool, and compares the result with
    /// one process.
    Rank(RankOptions),
    /// Measures the claims of the paper, on a pool of processes of this machine.
    ///
    /// Prints tables in Markdown. The figures are those of this machine, and of its shared memory
    /// or loopback, not of a network.
    Figures(FiguresOptions),
}

/// Options of `rstore sort`.
#[derive(Clone, Debug, Args)]
pub struct SortOptions {
    /// The master.
    #[command(flatten)]
    pub master: StatusOptions,
    /// Workers, each a thread with a client of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,
    /// Records of 100 bytes for each worker
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub records: u64,
    /// Key ranges for each worker
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub ranges: u16,
}

/// Options of `rstore rank`.
#[derive(Clone, Debug, Args)]
pub struct RankOptions {
    /// The master.
    #[command(flatten)]
    pub master: StatusOptions,
    /// Partitions, each a thread with a client of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,
    /// The graph has 2^N vertices, and 16 edges for each
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=26))]
    pub scale: u32,
    /// Supersteps
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub supersteps: u32,
}

/// Options of `rstore figures`.
#[derive(Clone, Debug, Args)]
pub struct FiguresOptions {
    /// Use TCP over loopback instead of shared memory
    #[arg(long)]
    pub tcp: bool,
    /// Give each store a host of its own in a simulated network, and its link this rate in each
    /// direction, in MB/s (10^6 bytes). Measures the control path and the bandwidth. Needs root
    #[arg(long, value_name = "MB/s", conflicts_with = "tcp", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub links: Option<u32>,
    /// Smaller loads, to see that everything runs
    #[arg(long)]
    pub quick: bool,
    /// Write the chart of the bandwidth to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
}

/// Options for peers.
#[derive(Clone, Debug, Args)]
pub struct PeerOptions {
    /// Address to listen at, such as 10.0.0.7:7460 or unix:/run/rstore.sock; repeatable
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub listen: Vec<Address>,
    /// File with a key, repeatable: a name, a space, and a secret in hexadecimal digits, with mode
    /// 600. `rfs-server --new-key NAME` makes one. The first is also shown to other programs of the
    /// pool
    #[arg(long, value_name = "FILE")]
    pub key: Vec<PathBuf>,
    /// Serve every program that reaches a network address, and every user of this machine
    #[arg(long, conflicts_with = "key")]
    pub allow_without_keys: bool,
}

/// Options of `rstore master`.
#[derive(Clone, Debug, Args)]
pub struct MasterOptions {
    /// Options for peers.
    #[command(flatten)]
    pub peers: PeerOptions,
    /// Length of a chunk, a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = byte_size::parse_nonzero)]
    pub chunk: u64,
    /// Free memory that stays prepared for later reservations [default: all]
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse)]
    pub cache: Option<u64>,
    /// File of the log. A master that restarts with it goes on where it was; without it, clients
    /// keep the regions that they have mapped and nothing else
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Milliseconds of the lease of a writer to a copy-on-write region
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub lease: u64,
    /// Milliseconds that a disconnected client or store may take to come back
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub grace: u64,
}

/// Options of `rstore store`.
#[derive(Clone, Debug, Args)]
pub struct StoreOptions {
    /// Options for peers.
    #[command(flatten)]
    pub peers: PeerOptions,
    /// Address of the master
    #[arg(long, value_name = "ADDRESS")]
    pub master: Address,
    /// Most bytes to lend, such as 512m or 4g
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero)]
    pub memory: u64,
    /// Address for clients, if it is not the first address to listen at
    #[arg(long, value_name = "ADDRESS")]
    pub advertise: Option<Address>,
    /// Kill a lost local client that keeps memory mapped, instead of waiting for its end
    #[arg(long)]
    pub kill: bool,
}

/// Options of `rstore status`.
#[derive(Clone, Debug, Args)]
pub struct StatusOptions {
    /// Address of the master
    pub master: Address,
    /// File with the key for the master
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use service_program::LogFormat;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn log_lines_have_the_format_of_the_option() {
        let format = |text: &str| Cli::try_parse_from(text.split_whitespace()).expect("valid").log.log_format;
        assert_eq!(format("rstore master --listen unix:/m"), LogFormat::Text);
        assert_eq!(format("rstore master --listen unix:/m --log-format json"), LogFormat::Json);
    }
}
