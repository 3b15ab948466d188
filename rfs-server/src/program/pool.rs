//! `rfs-server pool`: shows and changes the stores of a running server, over its control socket.
//!
//! # Concurrency
//! The main thread, and the thread `status` of a running server, which answers.

use std::{ffi::OsString, fmt::Display, process::ExitCode, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand};
use rdmabox::Address;
use rfs_status::{
    control::{ASK_LIMIT, ask},
    watch::{ShowOptions, join_interval, show},
};
use serde::{Deserialize, Serialize};

use super::status::{POOL, control_path};
use crate::server::{PoolStatus, StatusSource, config::default_listen, status::NO_POOL};

/// Begins the question to add a store. Its address follows.
const ADD: &str = "pool add ";
/// Limit of a change. The server may wait for a store.
const CHANGE_LIMIT: Duration = Duration::from_secs(30);

/// The answer of a server that has changed its pool.
#[derive(Debug, Serialize, Deserialize)]
struct Changed {
    /// The new state, in words for people.
    done: String,
}

/// Shows and changes the stores whose memory a running server uses.
///
/// The server answers root and its own user, on a control socket beside its Unix socket.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-server pool",
    bin_name = "rfs-server pool",
    max_term_width = 110,
    after_help = "Exit status: 0 if the server has answered, 1 if not, 2 for an invalid command line."
)]
struct PoolCli {
    #[command(subcommand)]
    command: PoolCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum PoolCommand {
    /// Shows a table of the stores: state, size, use, sessions of clients, and files with lost data
    Status {
        #[command(flatten)]
        server: ServerArgument,

        #[command(flatten)]
        show: ShowOptions,
    },
    /// Takes a running store into the pool. New data goes there at once
    Add {
        /// The store's address, as the server and its clients reach it
        #[arg(value_name = "ADDRESS")]
        store: Address,

        #[command(flatten)]
        server: ServerArgument,
    },
}

/// Which server a command asks.
#[derive(Clone, Debug, Args)]
struct ServerArgument {
    /// The server's Unix socket, or its first address if it has no Unix socket [default: the
    /// default socket of this user]
    #[arg(value_name = "SOCKET")]
    address: Option<Address>,
}

impl ServerArgument {
    /// Returns the address; `None` if this user has no default.
    fn address(self) -> Option<Address> {
        self.address.or_else(|| default_listen().into_iter().next())
    }
}

/// Returns the command line of the command.
pub(super) fn command() -> clap::Command {
    PoolCli::command().name("pool")
}

/// Returns the arguments of the command if the command line asks for it.
pub(super) fn own_arguments(arguments: &[OsString]) -> Option<&[OsString]> {
    arguments.get(1).filter(|first| *first == "pool").map(|_| &arguments[1..])
}

/// Asks a server, and prints its answer.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let PoolCli { command } = match PoolCli::try_parse_from(join_interval(arguments)) {
        Ok(cli) => cli,
        Err(e) => e.exit(),
    };
    match command {
        PoolCommand::Status { server, show } => status(server, &show),
        PoolCommand::Add { store, server } => change(server, &format!("{ADD}{store}")),
    }
}

fn status(server: ServerArgument, options: &ShowOptions) -> ExitCode {
    let Some(address) = server.address() else { return ExitCode::FAILURE };
    let path = control_path(&address);
    let render = |now: &PoolStatus, _: Option<&PoolStatus>| now.render();
    match show(options, || ask(&path, POOL, ASK_LIMIT), render) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rfs-server pool: server at {address}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Has a server change its pool, and prints its answer.
fn change(server: ServerArgument, question: &str) -> ExitCode {
    let Some(address) = server.address() else { return ExitCode::FAILURE };
    let failed = |reason: &dyn Display| {
        eprintln!("rfs-server pool: server at {address}: {reason}");
        ExitCode::FAILURE
    };
    match ask(&control_path(&address), question, CHANGE_LIMIT) {
        Ok(document) => match serde_json::from_str::<Changed>(&document) {
            Ok(Changed { done }) => {
                println!("{done}");
                ExitCode::SUCCESS
            }
            Err(e) => failed(&e),
        },
        Err(e) => failed(&e),
    }
}

/// Answers a question about the pool of a running server. Returns `None` for another question.
pub(super) fn answer(source: &StatusSource, question: &str) -> Option<String> {
    if question == POOL {
        let Some(pool) = source.pool() else { return Some(refusal(NO_POOL)) };
        return Some(serde_json::to_string(&pool).unwrap_or_else(|e| refusal(&e.to_string())));
    }
    let address = question.strip_prefix(ADD)?;
    Some(changed(add(source, address)))
}

fn add(source: &StatusSource, address: &str) -> Result<String, String> {
    let address: Address = address.parse().map_err(|e| format!("{e}"))?;
    let number = source.add_store(&address)?;
    let kept = match source.pool().and_then(|pool| pool.file) {
        Some(file) => format!("{file} has it"),
        None => "the next start of the server needs it in --store-at".into(),
    };
    Ok(format!("store {number} at {address} is in use; {kept}"))
}

/// Returns the document of an answer to a change.
fn changed(outcome: Result<String, String>) -> String {
    match outcome {
        Ok(done) => serde_json::json!(Changed { done }).to_string(),
        Err(reason) => refusal(&reason),
    }
}

/// Returns the document of a refusal.
fn refusal(reason: &str) -> String {
    serde_json::json!({ "error": reason }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        PoolCli::command().debug_assert();
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(own_arguments(&words("rfs-server pool status")), Some(&words("pool status")[..]));
        assert_eq!(own_arguments(&words("rfs-server --name pool")), None);
        let parsed = PoolCli::try_parse_from(join_interval(&words("pool status --watch 5 /run/x --json")));
        let PoolCommand::Status { server, show } = parsed.unwrap().command else { panic!("another command") };
        assert_eq!(server.address(), Some(Address::Unix("/run/x".into())));
        assert!(show.json && show.watch.is_some());
        assert!(PoolCli::try_parse_from(words("pool")).is_err());
    }
}
