//! Reliability trials of rfs: killed clients and servers, stopped servers, lossy networks,
//! exhausted space, and long use by many clients. The program is `rfs-reliability`.
//!
//! Each trial starts a server and mounts as separate processes, uses them as programs would, and
//! checks every byte that it reads. It ends with a table of results and requirements. The exit
//! status is 1 if a requirement is not met. It is 77 if this machine or the user's rights do not
//! permit the trial.
//!
//! `docs/development/reliability.md` describes the purpose of each trial.
#![forbid(unsafe_code)]

mod concurrent;
mod error;
mod report;
mod testbed;
mod trials;
mod users;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use measure::interrupt::Interrupt;

use error::{Error, Result};
use report::Report;
use testbed::{Plan, ServerOptions};
use trials::{clients, cut, full_server, killed_clients, killed_server, packets, pool, stopped, takeover};

/// Tests the reliability of rfs: kills and stops programs, loses packets, fills the server, and
/// runs many clients
#[derive(Debug, Parser)]
#[command(name = "rfs-reliability")]
struct Cli {
    /// Directory of rfs-server and rfs-fuse [default: directory of this program]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Provider of the mounts
    #[arg(long, value_parser = ["shm", "tcp", "rdma"], default_value = "shm")]
    provider: String,
    /// Memory of the server
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse, default_value = "256m")]
    memory: u64,
    /// Number of stores that lend as much memory to the server
    #[arg(long, value_name = "N", default_value_t = 0)]
    stores: usize,
    /// Do not check growth of memory, which means nothing in a trial of seconds
    #[arg(long)]
    short: bool,
    #[command(subcommand)]
    trial: Trial,
}

#[derive(Clone, Debug, Subcommand)]
enum Trial {
    /// Kills mounts that have locks, open files and unlinked files, while another mount is used
    KilledClients {
        /// Number of mounts to kill
        #[arg(long, default_value_t = 200)]
        times: u32,
    },
    /// Kills the server at random moments and starts it again with the same memory, while mounts
    /// are used
    KilledServer {
        /// Number of kills
        #[arg(long, default_value_t = 500)]
        times: u32,
        /// Start the server with checksums
        #[arg(long)]
        checksum: bool,
        /// Start the server with continuous snapshots; at the end its memory is lost
        #[arg(long)]
        persist: bool,
    },
    /// Stops the server repeatedly while mounts are used
    StoppedServer {
        /// Number of stops
        #[arg(long, default_value_t = 20)]
        times: u32,
        /// Duration of each stop
        #[arg(long, value_name = "SECS", default_value_t = 5)]
        seconds: u64,
    },
    /// Loses packets of a network repeatedly while mounts at its other end are used. Needs root;
    /// TCP only
    Packets {
        /// Percentage of packets to lose
        #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
        lost: u32,
        /// Number of faults
        #[arg(long, default_value_t = 20)]
        times: u32,
        /// Duration of each fault
        #[arg(long, value_name = "SECS", default_value_t = 5)]
        seconds: u64,
    },
    /// Cuts a mount off from the network for longer than its lease, then reconnects it. Needs root;
    /// TCP only
    Cut {
        /// Number of cuts
        #[arg(long, default_value_t = 3)]
        times: u32,
        /// Lease, at least 4 s. Also sets the server's recall timeout to a quarter of it and the
        /// mounts' request timeout to half of it [default: the programs' defaults]
        #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(4..))]
        lease: Option<u64>,
    },
    /// Kills and replaces the programs of mounts that outlive them, while the mounts are used
    Takeover {
        /// Number of kills
        #[arg(long, default_value_t = 200)]
        kills: u32,
        /// Number of upgrades
        #[arg(long, default_value_t = 50)]
        upgrades: u32,
    },
    /// Two mounts write until space is exhausted; then all files are checked, removed, and written
    /// again
    Full,
    /// Adds a store to a server with two stores, drains another one and removes it, while three
    /// mounts are used
    Pool {
        /// Bytes to write for the server and for each store. A drain moves as much
        #[arg(long, value_name = "SIZE", value_parser = byte_size::parse, default_value = "64m")]
        fill: u64,
    },
    /// Uses many mounts at the same time
    Clients {
        /// Number of mounts
        #[arg(long, default_value_t = 16)]
        clients: u32,
        /// Duration
        #[arg(long, value_name = "SECS", default_value_t = 3600)]
        seconds: u64,
    },
    /// Several mounts perform random operations at the same time; a model checks the results
    Concurrent(concurrent::Options),
}

/// Exit status of a trial that this machine cannot run.
const CANNOT_BE_TRIED: u8 = 77;

fn run(cli: Cli) -> Result<Report> {
    let interrupt = Interrupt::on_signals()?;
    let beside =
        || std::env::current_exe().map(|path| path.with_file_name("")).map_err(Error::io("own place"));
    let bin_dir = cli.bin_dir.map_or_else(beside, Ok)?;
    let Cli { provider, memory, stores, short, .. } = cli;
    let plan = Plan { bin_dir, provider, memory, stores, short, interrupt };
    match cli.trial {
        Trial::KilledClients { times } => killed_clients::run(&plan, times),
        Trial::KilledServer { times, checksum, persist } => {
            killed_server::run(&plan, times, ServerOptions { checksum, persist })
        }
        Trial::StoppedServer { times, seconds } => stopped::run(&plan, times, Duration::from_secs(seconds)),
        Trial::Packets { lost, times, seconds } => {
            packets::run(&plan, lost, times, Duration::from_secs(seconds))
        }
        Trial::Cut { times, lease } => cut::run(&plan, times, lease.map(Duration::from_secs)),
        Trial::Takeover { kills, upgrades } => takeover::run(&plan, kills, upgrades),
        Trial::Full => full_server::run(&plan),
        Trial::Pool { fill } => pool::run(&plan, fill),
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
