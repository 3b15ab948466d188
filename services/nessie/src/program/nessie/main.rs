//! `nessie`: see `nessie --help`.

use std::{
    error::Error,
    io::{self, ErrorKind, Read, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use nessie::Command;
use rdmabox::{Address, Key, RequestError, Session};

/// Reads and writes keys through a node, and shows the state of the node.
///
/// The node acts as a client for this command. Exit code 1 means that the key has no value.
#[derive(Debug, Parser)]
#[command(name = "nessie", version)]
struct Cli {
    /// Address of a node, such as 10.0.0.7:7460 or unix:/run/nessie.sock
    #[arg(long, value_name = "ADDRESS")]
    node: Address,
    /// File with the key of the nodes
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Prints the value of a key
    Get {
        /// Key
        key: String,
    },
    /// Stores a value
    Put {
        /// Key
        key: String,
        /// Value; "-" reads it from the standard input
        value: String,
    },
    /// Removes the value of a key
    Delete {
        /// Key
        key: String,
    },
    /// Prints the state and the counters of the node
    Status,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        // The reader of the output has seen enough.
        Err(error) if error.downcast_ref().is_some_and(|e: &io::Error| e.kind() == ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nessie: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Box<dyn Error>> {
    let command = match cli.action {
        Action::Get { key } => Command::Get(key.into()),
        Action::Put { key, value } if value == "-" => {
            let mut value = Vec::new();
            std::io::stdin().read_to_end(&mut value)?;
            Command::Put(key.into(), value)
        }
        Action::Put { key, value } => Command::Put(key.into(), value.into()),
        Action::Delete { key } => Command::Delete(key.into()),
        Action::Status => Command::Status,
    };
    let key = cli.key.as_deref().map(Key::load).transpose()?;
    let session = Session::builder().key(key).connect(&cli.node).map_err(|e| format!("{}: {e}", cli.node))?;
    let mut reply = Vec::new();
    session.call(&command.encode(), &mut reply).map_err(|e| match e {
        RequestError::Rejected { reason } => reason,
        other => format!("{}: {other}", cli.node),
    })?;
    let mut out = std::io::stdout();
    match (command, reply.split_first()) {
        (Command::Get(_), Some((b'+', value))) => {
            out.write_all(value)?;
            out.write_all(b"\n")?;
        }
        (Command::Get(_), _) => return Ok(ExitCode::from(1)),
        (Command::Status, _) => out.write_all(&reply)?,
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}
