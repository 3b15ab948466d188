//! `rfs-paging`: see `rfs-paging --help`.

use std::{error::Error, process::ExitCode};

use clap::{Parser, Subcommand};
use rdmabox::{Address, SessionOptions};
use rfs_paging::{Lender, LenderOptions, lender_status};

/// Lends memory to pagers, and shows what is lent.
#[derive(Debug, Parser)]
#[command(name = "rfs-paging", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lends memory of this machine until SIGTERM or Ctrl-C.
    ///
    /// Prints the addresses, one per line, and then a line that begins with "ready:". Every program
    /// that reaches an address can read and write the lent memory: use a Unix socket, or a network
    /// that you trust.
    Lend {
        /// Bytes to lend, such as 512m or 4g; rounded down to MiB
        #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero)]
        memory: u64,
        /// Address to listen at, such as 10.0.0.7:7450 or unix:/run/lend.sock; repeatable
        #[arg(long, value_name = "ADDRESS", required = true)]
        listen: Vec<Address>,
    },
    /// Shows how much memory a lender has lent.
    Status {
        /// Address of the lender
        address: Address,
    },
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let outcome = match Cli::parse().command {
        Command::Lend { memory, listen } => lend(memory, &listen),
        Command::Status { address } => status(&address),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rfs-paging: {error}");
            ExitCode::FAILURE
        }
    }
}

fn lend(memory: u64, listen: &[Address]) -> Result<(), Box<dyn Error>> {
    let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
    let mut signals = signal_hook::iterator::Signals::new(signals)?;
    let lender = Lender::listen(listen, &LenderOptions::new(memory))?;
    lender.addresses().iter().for_each(|address| println!("{address}"));
    let status = lender.status();
    println!("ready: lending {}", byte_size::show(u64::from(status.chunks) * status.chunk_bytes));
    signals.forever().next();
    Ok(())
}

fn status(address: &Address) -> Result<(), Box<dyn Error>> {
    let status = lender_status(address, &SessionOptions::default())?;
    let size = |chunks: u32| byte_size::show(u64::from(chunks) * status.chunk_bytes);
    println!("{} of {} lent", size(status.chunks - status.free_chunks), size(status.chunks));
    for (session, chunks) in &status.borrowers {
        println!("session {session}: {}", size(*chunks));
    }
    Ok(())
}
