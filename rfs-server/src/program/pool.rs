//! `rfs-server pool`: shows and changes the stores of a running server, over its control socket.
//!
//! # Concurrency
//! The main thread, and the thread `status` of a running server, which answers.

use std::{ffi::OsString, process::ExitCode, thread, time::Duration};

use clap::{CommandFactory, Parser, Subcommand};
use rdmabox::Address;
use rfs_status::{
    control::{ASK_LIMIT, Asker, ask},
    watch::{ShowOptions, join_interval, show},
};
use serde::{Deserialize, Serialize};

use super::status::{POOL, ServerArgument, control_path};
use crate::server::{
    PoolStatus, StatusSource,
    status::{
        NO_POOL,
        pool::{StoreState, StoreStatus},
    },
};

/// Begins the question to add a store. Its address follows.
const ADD: &str = "pool add ";
/// Begins the question to drain a store, whose name follows.
const DRAIN: &str = "pool drain ";
const STOP: &str = "pool stop ";
const REMOVE: &str = "pool remove ";
/// Begins the question to remove a store that will not come back.
const GIVE_UP: &str = "pool lose ";
/// Interval at which the progress of a drain is printed.
const PROGRESS: Duration = Duration::from_secs(1);
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
/// The server answers root and its own user, on a control socket beside its Unix socket. With
/// --socket-mode or --socket-group it shows other users the status, but lets them change nothing.
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
    /// Moves the data of a store to the others while clients work, and shows the progress until the
    /// store is empty. No new data goes to the store. Ctrl-C ends the display only; the server goes
    /// on
    Drain {
        /// Number or address of the store
        #[arg(value_name = "STORE")]
        store: String,

        #[command(flatten)]
        server: ServerArgument,

        /// Interrupt the drain: the rest of the data stays, and new data goes to the store again. A
        /// later drain continues
        #[arg(long)]
        stop: bool,

        /// Return at once. `pool status` shows the progress
        #[arg(long, conflicts_with = "stop")]
        no_wait: bool,
    },
    /// Takes a store without data out of the pool, and returns its memory
    Remove {
        /// Number or address of the store
        #[arg(value_name = "STORE")]
        store: String,

        #[command(flatten)]
        server: ServerArgument,

        /// Remove a store that does not answer and will not come back. Its data is lost, and the
        /// server's log lists the files. Sessions that wait for their end at the store end
        #[arg(long)]
        lost: bool,
    },
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
        PoolCommand::Add { store, server } => ended(&server, change(&server, &format!("{ADD}{store}"))),
        PoolCommand::Drain { store, server, stop, no_wait } => {
            let changed = change(&server, &format!("{}{store}", if stop { STOP } else { DRAIN }));
            let follows = !stop && !no_wait;
            ended(&server, changed.and_then(|()| if follows { follow(&server, &store) } else { Ok(()) }))
        }
        PoolCommand::Remove { store, server, lost } => {
            ended(&server, change(&server, &format!("{}{store}", if lost { GIVE_UP } else { REMOVE })))
        }
    }
}

/// Returns the exit status of a command, and prints why it failed.
fn ended(server: &ServerArgument, outcome: Result<(), String>) -> ExitCode {
    let Err(reason) = outcome else { return ExitCode::SUCCESS };
    match server.address() {
        Ok(address) => eprintln!("rfs-server pool: server at {address}: {reason}"),
        Err(_) => eprintln!("rfs-server pool: {reason}"),
    }
    ExitCode::FAILURE
}

/// Asks a server.
fn asked(server: &ServerArgument, question: &str, limit: Duration) -> Result<String, String> {
    ask(&control_path(&server.address()?), question, limit).map_err(|e| e.to_string())
}

fn status(server: ServerArgument, options: &ShowOptions) -> ExitCode {
    let render = |now: &PoolStatus, _: Option<&PoolStatus>| now.render();
    let shown = server.address().and_then(|address| {
        let path = control_path(&address);
        show(options, || ask(&path, POOL, ASK_LIMIT), render).map_err(|e| e.to_string())
    });
    ended(&server, shown)
}

/// Has a server change its pool, and prints its answer.
fn change(server: &ServerArgument, question: &str) -> Result<(), String> {
    let document = asked(server, question, CHANGE_LIMIT)?;
    let Changed { done } = serde_json::from_str(&document).map_err(|e| e.to_string())?;
    println!("{done}");
    Ok(())
}

/// Prints the progress of a drain until the store is empty.
fn follow(server: &ServerArgument, store: &str) -> Result<(), String> {
    let mut shown = String::new();
    loop {
        let document = asked(server, POOL, ASK_LIMIT)?;
        let pool: PoolStatus = serde_json::from_str(&document).map_err(|e| e.to_string())?;
        let is = |status: &&StoreStatus| status.number.to_string() == store || status.address == store;
        let status = pool.stores.iter().find(is).ok_or("the store is not in the pool any more")?;
        let line = format!("store {}: {}", status.number, status.drain_line());
        if line != shown {
            println!("{line}");
            shown = line;
        }
        match status.state {
            StoreState::Empty => return Ok(()),
            StoreState::Lost => {
                let number = status.number;
                return Err(format!(
                    "store {number} has lost its memory: `rfs-server pool remove --lost {number}` gives its data up"
                ));
            }
            _ if status.drain.is_none() => return Err("the drain was stopped".into()),
            _ => thread::sleep(PROGRESS),
        }
    }
}

/// Answers a question about the pool of a running server. Returns `None` for another question.
pub(super) fn answer(source: &StatusSource, question: &str, asker: Asker) -> Option<String> {
    if question == POOL {
        let Some(pool) = source.pool() else { return Some(refusal(NO_POOL)) };
        return Some(serde_json::to_string(&pool).unwrap_or_else(|e| refusal(&e.to_string())));
    }
    type Change = fn(&StatusSource, &str) -> Result<String, String>;
    let changes: [(&str, Change); 5] =
        [(ADD, add), (DRAIN, drain), (STOP, stop), (REMOVE, remove), (GIVE_UP, give_up)];
    let (argument, change) =
        changes.iter().find_map(|(prefix, change)| Some((question.strip_prefix(prefix)?, change)))?;
    if asker != Asker::Owner {
        return Some(refusal("only root and the user of the server may change its pool"));
    }
    Some(changed(change(source, argument)))
}

fn drain(source: &StatusSource, store: &str) -> Result<String, String> {
    let (number, is_new) = source.drain_store(store, true)?;
    let state = if is_new { "drains" } else { "drains already" };
    Ok(format!("store {number} {state}: no new data goes there"))
}

fn stop(source: &StatusSource, store: &str) -> Result<String, String> {
    let (number, was_on) = source.drain_store(store, false)?;
    let state = if was_on { "drains no more" } else { "did not drain" };
    Ok(format!("store {number} {state}: new data goes there"))
}

fn remove(source: &StatusSource, store: &str) -> Result<String, String> {
    let number = source.remove_store(store)?;
    Ok(format!("store {number} is removed"))
}

fn give_up(source: &StatusSource, store: &str) -> Result<String, String> {
    let (number, files) = source.give_up_store(store)?;
    Ok(format!("store {number} is removed; {files} files have lost data, which the server's log lists"))
}

fn add(source: &StatusSource, address: &str) -> Result<String, String> {
    let address: Address = address.parse().map_err(|e| format!("{e}"))?;
    let number = source.add_store(&address)?;
    let pool = source.pool().unwrap_or_default();
    let kept = match pool.file.or(pool.registry.map(|registry| registry.place)) {
        Some(place) => format!("{place} has it"),
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
        assert_eq!(server.address(), Ok(Address::Unix("/run/x".into())));
        assert!(show.json && show.watch.is_some());
        assert!(PoolCli::try_parse_from(words("pool")).is_err());
    }
}
