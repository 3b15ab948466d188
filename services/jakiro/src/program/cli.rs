//! Command line of `jakiro-server`. It parses options and starts nothing.
//!
//! # Concurrency
//! Plain values.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use rdmabox::Address;
use service_program::LogOptions;

use crate::{MAX_VALUE, StoreOptions};

/// Most threads for clients of the text protocol, unless an option says otherwise.
const MAX_TEXT_THREADS: usize = 4;

/// Serves a key-value cache from the memory of this machine, until SIGTERM or Ctrl-C.
///
/// Prints the addresses, one per line, and then a line that begins with "ready:". The items end
/// with the program. A full cache evicts the items whose last use is the longest ago.
#[derive(Debug, Parser)]
#[command(
    name = "jakiro-server",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of a server, if there is no command.
    #[command(flatten)]
    pub serve: Option<ServeArgs>,
    /// How to log.
    #[command(flatten)]
    pub log: LogOptions,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows the counters of a running server.
    Status(StatusArgs),
}

/// Options of a server.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Memory for items, such as 64m or 4g, taken at the start. Each thread needs 2.1 MiB, or less
    /// with a smaller --max-value
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero)]
    pub memory: u64,
    /// Address to listen at, such as 10.0.0.7:7460 or unix:/run/jakiro.sock; repeatable. Thread I
    /// of the server listens at port 7460 + I, and at /run/jakiro.sock.I
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub listen: Vec<Address>,
    /// Number of threads, each with a partition of the keys, 1 to 64 [default: the processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// Longest value, at most 1m
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero, default_value = "1m")]
    max_value: u64,
    /// Most clients at a time, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub clients: usize,
    /// Milliseconds for which a thread polls for the next request of a client that fetches replies,
    /// at most a day. It takes all of a processor meanwhile [default: learnt, at most 0.1 ms]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(..=86_400_000))]
    poll_ms: Option<u32>,
    /// File with a key of clients, repeatable: a name, a space, and a secret in hexadecimal digits,
    /// with mode 600. `rfs-server --new-key NAME` makes one
    #[arg(long, value_name = "FILE")]
    pub key: Vec<PathBuf>,
    /// Serve every program that reaches a network address, and every user of this machine
    #[arg(long, conflicts_with = "key")]
    pub allow_without_keys: bool,
    /// Address for clients of the memcached text protocol, such as 127.0.0.1:11211. The protocol
    /// has no keys: every program that reaches the address can read and change all items
    #[arg(long, value_name = "ADDRESS")]
    pub text: Option<String>,
    /// Permit an address of --text that other machines reach
    #[arg(long, requires = "text")]
    pub text_allow_anyone: bool,
    /// Number of threads for clients of --text [default: as --threads, at most 4]
    #[arg(long, value_name = "N", requires = "text", value_parser = clap::value_parser!(u16).range(1..=64))]
    text_threads: Option<u16>,
    /// Most connections of --text at a time
    #[arg(long, value_name = "N", requires = "text", default_value_t = 1024)]
    pub text_connections: usize,
}

impl ServeArgs {
    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(processors, usize::from).min(StoreOptions::MAX_PARTITIONS)
    }

    /// Returns the time for which threads poll.
    pub fn poll(&self) -> Option<Duration> {
        self.poll_ms.map(|millis| Duration::from_millis(millis.into()))
    }

    /// Returns the number of threads for clients of the text protocol.
    pub fn text_threads(&self) -> usize {
        self.text_threads.map_or_else(|| self.threads().min(MAX_TEXT_THREADS), usize::from)
    }

    /// Returns the limit for values. The store refuses a limit that is too large.
    pub fn max_value(&self) -> usize {
        usize::try_from(self.max_value).unwrap_or(MAX_VALUE + 1)
    }
}

/// Options of `jakiro-server status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Address of the server
    pub address: Address,
    /// File with the key for the server
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
        let parse = |text: &str| Cli::try_parse_from(text.split_whitespace());
        let cli =
            parse("jakiro-server --memory 64m --listen /run/a --listen h:1 --threads 3").expect("valid");
        let serve = cli.serve.expect("options");
        assert_eq!((serve.memory, serve.listen.len(), serve.threads()), (64 << 20, 2, 3));
        assert_eq!(serve.max_value(), MAX_VALUE);
        assert_eq!((&serve.text, serve.text_threads(), serve.text_connections), (&None, 3, 1024));
        let text = "jakiro-server --memory 64m --listen /a --text [::1]:0 --threads 9";
        let serve = parse(text).expect("valid").serve.expect("options");
        assert_eq!((serve.text.as_deref(), serve.text_threads()), (Some("[::1]:0"), 4));
        assert!(matches!(
            parse("jakiro-server status h:1").expect("valid").command,
            Some(Command::Status(_))
        ));
    }

    #[test]
    fn log_lines_have_the_format_of_the_option() {
        let parse = |text: &str| Cli::try_parse_from(text.split_whitespace());
        let format = |text: &str| parse(text).expect("valid").log.log_format;
        assert_eq!(format("jakiro-server --memory 64m --listen /a"), LogFormat::Text);
        assert_eq!(format("jakiro-server --memory 64m --listen /a --log-format json"), LogFormat::Json);
        assert!(parse("jakiro-server --memory 64m --listen /a --log-format xml").is_err());
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let refusal = |text: &str| Cli::try_parse_from(text.split_whitespace()).unwrap_err().to_string();
        assert!(refusal("jakiro-server --listen /run/a").contains("--memory"));
        assert!(refusal("jakiro-server --memory 1g").contains("--listen"));
        assert!(refusal("jakiro-server --memory 1q --listen /a").contains("1q"));
        assert!(refusal("jakiro-server --memory 1g --listen /a --threads 65").contains("65"));
        assert!(refusal("jakiro-server --memory 1g --listen /a --poll-ms 86400001").contains("86400000"));
        assert!(
            refusal("jakiro-server --memory 1g --listen /a --text-allow-anyone").contains("--text <ADDRESS>")
        );
    }
}
