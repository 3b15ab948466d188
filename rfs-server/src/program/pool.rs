//! `rfs-server pool`: shows the stores of a running server, over its control socket.
//!
//! # Concurrency
//! The main thread, and the thread `status` of a running server, which answers.

use std::{ffi::OsString, process::ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand};
use rdmabox::Address;
use rfs_status::{
    control::{ASK_LIMIT, ask},
    watch::{ShowOptions, join_interval, show},
};

use super::status::{POOL, control_path};
use crate::server::{PoolStatus, StatusSource, config::default_listen};

/// Shows the stores whose memory a running server uses.
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

/// Answers a running server's question for its stores.
pub(super) fn answer(source: &StatusSource) -> String {
    let Some(pool) = source.pool() else {
        return refusal("it has no stores: start it with --store-at");
    };
    serde_json::to_string(&pool).unwrap_or_else(|e| refusal(&e.to_string()))
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
        let PoolCommand::Status { server, show } = parsed.unwrap().command;
        assert_eq!(server.address(), Some(Address::Unix("/run/x".into())));
        assert!(show.json && show.watch.is_some());
        assert!(PoolCli::try_parse_from(words("pool")).is_err());
    }
}
