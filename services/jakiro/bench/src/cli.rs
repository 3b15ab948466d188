//! Command line of `jakiro-bench`. It parses options and starts nothing.
//!
//! # Concurrency
//! Plain values.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use rdmabox::{Address, ProviderKind};

use crate::figure::Figure;

/// Repeats the figures of the Jakiro paper. The systems are the store with fetched replies
/// (jakiro), the store with sent replies (server-reply), and memcached if it is installed.
#[derive(Debug, Parser)]
#[command(name = "jakiro-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measures figures, and prints a table for each
    Run(RunArgs),
    /// Serves a store for a run, until the standard input ends
    #[command(hide = true)]
    Serve { address: Address, memory: u64, threads: usize, poll_ms: u32 },
}

/// Options of `jakiro-bench run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Figures to measure [default: all]
    #[arg(value_enum)]
    pub(crate) figures: Vec<Figure>,
    /// Providers, separated by commas: shm, tcp
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["shm", "tcp"])]
    pub(crate) provider: Vec<ProviderKind>,
    /// Simulate modelled cards instead: model:cx3, or model: and the path of a file of constants
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Client threads of fig4, separated by commas [default: 1,2,4,8; on cards
    /// 7,14,21,28,35,56,84,112]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) threads: Vec<u16>,
    /// Client threads of the other figures [default: 2; on cards 35]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) at: Option<u16>,
    /// Threads of the server, each with a partition [default: 1; on cards 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) server_threads: Option<u16>,
    /// Milliseconds for which a thread of the server polls for the next fetched request
    #[arg(long, value_name = "MS", default_value_t = 10)]
    pub(crate) poll_ms: u32,
    /// Number of keys, at least 2
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(2..=100_000_000))]
    pub(crate) keys: u64,
    /// Milliseconds of a measurement
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) duration: u64,
    /// Measurements of each point, in turns; tables have the medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Requests of a point on cards
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub(crate) requests: u64,
    /// Time of a server thread for a request on cards, in ns [default: measured on this machine]
    #[arg(long, value_name = "NS")]
    pub(crate) server_ns: Option<u64>,
    /// Also write the results as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let words = "jakiro-bench run fig4 fig7 --provider shm --threads 1,2 --rounds 1";
        let cli = Cli::try_parse_from(words.split_whitespace()).expect("valid");
        let Command::Run(args) = cli.command else { panic!("{cli:?}") };
        assert_eq!(args.figures, [Figure::Fig4, Figure::Fig7]);
        assert_eq!((args.threads, args.provider), (vec![1, 2], vec![ProviderKind::Shm]));
        assert!(Cli::try_parse_from(["jakiro-bench", "run", "fig1"]).is_err());
        assert!(Cli::try_parse_from(["jakiro-bench", "run", "--keys", "1"]).is_err());
    }
}
