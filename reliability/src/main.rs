//! What happens to rfs when clients are killed, when it is full, and when many use it for long: `rfs-reliability`.
//!
//! Every trial starts a server and mounts as programs of their own, uses them as programs would, checks each byte that it
//! reads, and ends with a table of what was found and what is required. Status 1 if anything required does not hold.
//! RELIABILITY.md of rfs-server says what each trial is for.
#![forbid(unsafe_code)]

mod clients;
mod content;
mod full;
mod killed;
mod killed_server;
mod memory;
mod report;
mod stand;
mod user;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use measure::interrupt::Interrupt;
use rdmabox::size;

use report::Report;
use stand::Plan;

/// Tries how reliable rfs is: kills clients, fills the server, has many use it for long.
#[derive(Debug, Parser)]
#[command(name = "rfs-reliability")]
struct Cli {
    /// Where rfs-server and rfs-fuse are [default: beside this program]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// What mounts go over
    #[arg(long, value_parser = ["shm", "tcp", "rdma"], default_value = "shm")]
    provider: String,
    /// What the server lends
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256m")]
    memory: u64,
    /// Do not require memory to stay as it is: a trial of seconds says nothing about that
    #[arg(long)]
    short: bool,
    #[command(subcommand)]
    trial: Trial,
}

#[derive(Clone, Debug, Subcommand)]
enum Trial {
    /// Mounts that have locks, leases and unlinked files are killed, while another one is used
    KilledClients {
        /// How many
        #[arg(long, default_value_t = 200)]
        times: u32,
    },
    /// The server is killed at any moment, and started again with the same memory, while mounts are used
    KilledServer {
        /// How many times
        #[arg(long, default_value_t = 500)]
        times: u32,
    },
    /// Two mounts write until there is no space, then everything is read, removed, and written again
    Full,
    /// Many mounts are used at once
    Clients {
        /// How many
        #[arg(long, default_value_t = 16)]
        clients: u32,
        /// For how long
        #[arg(long, value_name = "SECS", default_value_t = 3600)]
        seconds: u64,
    },
}

/// Why a trial could not be made, or did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// A program, or the end of the trial by a signal.
    #[error(transparent)]
    Program(#[from] measure::Error),
    /// An operation that the trial itself needs.
    #[error("{what}: {source}")]
    Io {
        /// What was done.
        what: &'static str,
        /// What came of it.
        source: std::io::Error,
    },
    /// What is there is not what it has to be.
    #[error("{0}")]
    Wrong(String),
}

impl Error {
    /// Makes one of an operation's error.
    fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { what, source }
    }
}

type Result<T> = std::result::Result<T, Error>;

fn run(cli: Cli) -> Result<Report> {
    let interrupt = Interrupt::on_signals()?;
    let beside =
        || std::env::current_exe().map(|path| path.with_file_name("")).map_err(Error::io("own place"));
    let bin_dir = cli.bin_dir.map_or_else(beside, Ok)?;
    let plan = Plan { bin_dir, provider: cli.provider, memory: cli.memory, short: cli.short, interrupt };
    match cli.trial {
        Trial::KilledClients { times } => killed::run(&plan, times),
        Trial::KilledServer { times } => killed_server::run(&plan, times),
        Trial::Full => full::run(&plan),
        Trial::Clients { clients, seconds } => clients::run(&plan, clients, Duration::from_secs(seconds)),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(report) => {
            println!("{report}");
            if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("rfs-reliability: {error}");
            ExitCode::FAILURE
        }
    }
}
