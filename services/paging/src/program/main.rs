//! `rfs-paging`: see `rfs-paging --help`.

use std::{error::Error, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use rdmabox::{Address, Key, SessionOptions};
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
    /// Prints the addresses, one per line, and then a line that begins with "ready:". A network
    /// address needs keys. Every pager with a key can read and write all of the lent memory.
    Lend {
        /// Bytes to lend, such as 512m or 4g; rounded down to MiB
        #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero)]
        memory: u64,
        /// Address to listen at, such as 10.0.0.7:7450 or unix:/run/lend.sock; repeatable
        #[arg(long, value_name = "ADDRESS", required = true)]
        listen: Vec<Address>,
        /// File with a key of pagers, repeatable: a name, a space, and a secret in hexadecimal
        /// digits, with mode 600. `rfs-server --new-key NAME` makes one
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
        /// Lend to every program that reaches a network address, and to every user of this machine
        #[arg(long, conflicts_with = "key")]
        allow_without_keys: bool,
    },
    /// Shows how much memory a lender has lent.
    Status {
        /// Address of the lender
        address: Address,
        /// File with the key for the lender
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let outcome = match Cli::parse().command {
        Command::Lend { memory, listen, key, allow_without_keys } => {
            lend(memory, &listen, &key, allow_without_keys)
        }
        Command::Status { address, key } => status(&address, key),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rfs-paging: {error}");
            ExitCode::FAILURE
        }
    }
}

fn lend(memory: u64, listen: &[Address], keys: &[PathBuf], open: bool) -> Result<(), Box<dyn Error>> {
    let keys = keys.iter().map(|path| Key::load(path)).collect::<Result<_, _>>()?;
    let options = LenderOptions::new(memory).keys(keys).allow_without_keys(open);
    let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
    let mut signals = signal_hook::iterator::Signals::new(signals)?;
    let lender = Lender::listen(listen, &options)?;
    lender.addresses().iter().for_each(|address| println!("{address}"));
    let status = lender.status();
    println!("ready: lending {}", byte_size::show(u64::from(status.chunks) * status.chunk_bytes));
    signals.forever().next();
    Ok(())
}

fn status(address: &Address, key: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let mut options = SessionOptions::default();
    options.key = key.map(|path| Key::load(&path)).transpose()?;
    let status = lender_status(address, &options)?;
    let size = |chunks: u32| byte_size::show(u64::from(chunks) * status.chunk_bytes);
    println!("{} of {} lent", size(status.chunks - status.free_chunks), size(status.chunks));
    for (session, chunks) in &status.borrowers {
        println!("session {session}: {}", size(*chunks));
    }
    Ok(())
}
