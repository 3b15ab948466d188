//! Command line of `nessie-bench`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rdmabox::ProviderKind;

/// Measures the experiments of the Nessie paper on this machine, and prints a table for each.
///
/// Servers are processes of their own, on processor 1 beside the hogs. Clients run on processor 0.
/// NessieSD is the server-driven twin: the same tables, driven by calls.
#[derive(Debug, Parser)]
#[command(name = "nessie-bench", version)]
pub(crate) struct Cli {
    /// Figure to measure, repeatable [default: all]
    #[arg(long, value_name = "FIGURE")]
    pub(crate) figure: Vec<Figure>,
    /// Provider of the sessions
    #[arg(long, value_enum, default_value_t = Over::Shm)]
    pub(crate) over: Over,
    /// Milliseconds for each cell of a table
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub(crate) cell_ms: u64,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 6000)]
    pub(crate) keys: u32,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 879)]
    pub(crate) value: usize,
    /// Most hogs beside a server
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) hogs: usize,
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Over {
    Shm,
    Tcp,
}

impl Over {
    pub(crate) fn provider(self) -> ProviderKind {
        match self {
            Over::Shm => ProviderKind::Shm,
            Over::Tcp => ProviderKind::Tcp,
        }
    }
}

/// An experiment of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Figure {
    /// Figure 1: READs against calls, by size
    #[value(name = "1")]
    Sizes,
    /// Figures 2 and 7: throughput beside processes that compute
    #[value(name = "7")]
    Hogs,
    /// Figure 8: clients that compute between operations
    #[value(name = "8")]
    Compute,
    /// Figure 9: accesses to an own working set
    #[value(name = "9")]
    Locality,
    /// Figure 10: filter bits
    #[value(name = "10")]
    Filter,
    /// Figure 11: Zipf-distributed keys, with and without a cache
    #[value(name = "11")]
    Zipf,
}

impl Figure {
    pub(crate) const ALL: [Figure; 6] =
        [Figure::Sizes, Figure::Hogs, Figure::Compute, Figure::Locality, Figure::Filter, Figure::Zipf];
}

/// Processes that the benchmark starts.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Computes until its standard input ends
    #[command(hide = true)]
    Hog { processor: usize },
    /// Runs a node until its standard input ends
    #[command(hide = true)]
    Serve(Serve),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Serve {
    #[arg(long)]
    pub(crate) nodes: PathBuf,
    #[arg(long)]
    pub(crate) id: u16,
    #[arg(long)]
    pub(crate) keys: u32,
    #[arg(long)]
    pub(crate) value: usize,
    #[arg(long)]
    pub(crate) filter_bits: u32,
    #[arg(long)]
    pub(crate) server_driven: bool,
    #[arg(long, value_enum)]
    pub(crate) over: Over,
    #[arg(long)]
    pub(crate) processor: Option<usize>,
}
