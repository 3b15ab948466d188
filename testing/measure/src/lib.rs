//! Code that the benchmark programs of this workspace share. This crate does not measure anything
//! itself.
//!
//! * [`process`]: child processes that end with the program; [`interrupt`]: Ctrl-C;
//! * [`network`]: simulated hosts with links of a limited rate; [`pool_key`]: keys of pools;
//! * [`machine`]: the machine and the commit of a result;
//! * [`statistics`]: medians and spreads; [`colors`]: colours of charts;
//! * [`progress`]: progress display; [`error`]: one-line errors;
//! * [`testing`]: test helpers.
#![forbid(unsafe_code)]

pub mod colors;
pub mod error;
pub mod interrupt;
pub mod machine;
pub mod network;
pub mod pool_key;
pub mod process;
pub mod progress;
pub mod statistics;
pub mod testing;

pub use error::{Error, Result};
