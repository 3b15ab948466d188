//! Command line of `nessie`. It parses options and starts nothing.
//!
//! # Concurrency
//! Plain values.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use rdmabox::Address;

/// Reads and writes keys through a node, and shows the state of the node.
///
/// The node acts as a client for this command. Exit code 1 means that the key has no value.
#[derive(Debug, Parser)]
#[command(name = "nessie", version)]
pub struct Cli {
    /// Address of a node, such as 10.0.0.7:7460 or unix:/run/nessie.sock
    #[arg(long, value_name = "ADDRESS")]
    pub node: Address,
    /// File with the key of the nodes
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// The command.
    #[command(subcommand)]
    pub action: Action,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
pub enum Action {
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
    /// Moves the values of a node that joined to other nodes, and gives the node up
    Leave,
}
