//! What happens to rfs when clients or servers are killed, servers are stopped, networks lose packets, when it is full, and when many
//! use it for long: `rfs-reliability`.
//!
//! Every trial starts a server and mounts as programs of their own, uses them as programs would, checks each byte that it
//! reads, and ends with a table of what was found and what is required. Status 1 if anything required does not hold, 77 if this
//! machine or the user's rights lack what the trial needs.
//! RELIABILITY.md of rfs-server says what each trial is for.
#![forbid(unsafe_code)]

mod bulk;
mod clients;
mod concurrent;
mod content;
mod cut;
mod disturbed;
mod full;
mod hand;
mod killed;
mod killed_server;
mod memory;
mod network;
mod packets;
mod processes;
mod report;
mod shelf;
mod stand;
mod stopped;
mod user;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use measure::interrupt::Interrupt;
use rdmabox::size;

use report::Report;
use stand::{Besides, Plan};

/// Tries how reliable rfs is: kills and stops programs, loses packets, fills the server, has many use it for long.
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
        /// It keeps checksums
        #[arg(long)]
        checksum: bool,
        /// It makes snapshots all the time; at last its memory is lost
        #[arg(long)]
        persist: bool,
    },
    /// The server is stopped for some seconds, again and again, while mounts are used
    StoppedServer {
        /// How many times
        #[arg(long, default_value_t = 20)]
        times: u32,
        /// For how long each
        #[arg(long, value_name = "SECS", default_value_t = 5)]
        seconds: u64,
    },
    /// A network loses packets for some seconds, again and again, while mounts at its other end are used. Needs root, over TCP only
    Packets {
        /// How many of a hundred
        #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
        lost: u32,
        /// How many times
        #[arg(long, default_value_t = 20)]
        times: u32,
        /// For how long each
        #[arg(long, value_name = "SECS", default_value_t = 5)]
        seconds: u64,
    },
    /// A mount is cut off from the network for longer than its lease, and then no more. Needs root, over TCP only
    Cut {
        /// How many times
        #[arg(long, default_value_t = 3)]
        times: u32,
        /// The lease, 4 s or more. A server waits for a quarter of it to be answered by who keeps what has changed, a mount for half of it
        /// to be answered by the server [default: what both have if nothing is said]
        #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(4..))]
        lease: Option<u64>,
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
    /// Several mounts perform random operations at the same time, and the answers are compared with a model
    Concurrent(concurrent::Options),
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
    /// Something that the trial cannot be made without.
    #[error("cannot be tried here: {0}")]
    Missing(String),
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

/// The status of a trial that cannot be made here.
const CANNOT_BE_TRIED: u8 = 77;

type Result<T> = std::result::Result<T, Error>;

fn run(cli: Cli) -> Result<Report> {
    let interrupt = Interrupt::on_signals()?;
    let beside =
        || std::env::current_exe().map(|path| path.with_file_name("")).map_err(Error::io("own place"));
    let bin_dir = cli.bin_dir.map_or_else(beside, Ok)?;
    let plan = Plan { bin_dir, provider: cli.provider, memory: cli.memory, short: cli.short, interrupt };
    match cli.trial {
        Trial::KilledClients { times } => killed::run(&plan, times),
        Trial::KilledServer { times, checksum, persist } => {
            killed_server::run(&plan, times, Besides { checksum, persist })
        }
        Trial::StoppedServer { times, seconds } => stopped::run(&plan, times, Duration::from_secs(seconds)),
        Trial::Packets { lost, times, seconds } => {
            packets::run(&plan, lost, times, Duration::from_secs(seconds))
        }
        Trial::Cut { times, lease } => cut::run(&plan, times, lease.map(Duration::from_secs)),
        Trial::Full => full::run(&plan),
        Trial::Concurrent(options) => concurrent::run(&plan, &options),
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
            if matches!(error, Error::Missing(_)) { CANNOT_BE_TRIED.into() } else { ExitCode::FAILURE }
        }
    }
}
