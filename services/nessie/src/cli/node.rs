//! Command line of `nessie-node`. It parses options and starts nothing.
//!
//! # Concurrency
//! Plain values.

use std::path::PathBuf;

use clap::Parser;
use rdmabox::Address;
use service_program::LogOptions;

/// Runs a node of a key-value store until SIGTERM or Ctrl-C.
///
/// The node lends memory to all nodes and is a client of all nodes. It prints its addresses, then a
/// line that begins with "ready:" when all nodes of the list have answered. Its values are lost
/// when it ends, unless it joined and left (`nessie leave`). All nodes need the same options, but
/// for --id, --listen, --data and --cache.
#[derive(Debug, Parser)]
#[command(name = "nessie-node", version)]
pub struct Cli {
    /// File with the nodes: a line with number and address for each, such as "0 10.0.0.7:7460"
    #[arg(long, value_name = "FILE", required_unless_present = "join", requires_all = ["id", "index"])]
    pub nodes: Option<PathBuf>,
    /// Number of this node in the file
    #[arg(long, value_name = "N")]
    pub id: Option<u16>,
    /// Bytes of this node's part of the index, such as 1m: 8 for each slot
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero)]
    pub index: Option<u64>,
    /// Join through this node of a running store, in place of a file of nodes. The node gets a
    /// number and the options of the store, has no part of the index, and can leave
    #[arg(
        long, value_name = "ADDRESS", requires = "listen",
        conflicts_with_all = [
            "nodes", "id", "index", "spare", "max_key", "max_value", "ways", "filter_bits", "depth",
            "reuse_delay_ms", "lease_ms", "patience_ms",
        ],
    )]
    pub join: Option<Address>,
    /// Numbers for nodes that join, which no node has twice. With the list at most 64
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub spare: u16,
    /// Bytes of this node's data table, such as 64m
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero)]
    pub data: u64,
    /// Address to listen at, repeatable [default: the address in the file]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<Address>,
    /// File with the key of all nodes: a name, a space, and a secret in hexadecimal digits, with
    /// mode 600. `rfs-server --new-key NAME` makes one
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Serve every program that reaches a network address, and every user of this machine
    #[arg(long, conflicts_with = "key")]
    pub allow_without_keys: bool,
    /// Longest key
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = byte_size::parse_nonzero)]
    pub max_key: u64,
    /// Longest value
    #[arg(long, value_name = "SIZE", default_value = "1024", value_parser = byte_size::parse_nonzero)]
    pub max_value: u64,
    /// Slots that a key can be in: 2 to 4
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub ways: usize,
    /// Most filter bits of an index word
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub filter_bits: u32,
    /// Entries of other nodes to cache
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cache: usize,
    /// Longest path of migrations
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub depth: u8,
    /// Milliseconds until an entry is used again. Operations that take longer than 7/8 of it fail
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    pub reuse_delay_ms: u64,
    /// Milliseconds that a node serves without an answer of a majority
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    pub lease_ms: u64,
    /// Milliseconds until a node that does not answer is given up
    #[arg(long, value_name = "MS", default_value_t = 3000)]
    pub patience_ms: u64,
    /// Seconds to wait for the other nodes before the line "waiting:"
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub wait_s: u64,
    /// How to log.
    #[command(flatten)]
    pub log: LogOptions,
}
