//! The program `rfs-server`: options, signals, and messages on standard output.
//!
//! # Concurrency
//! See each module.

pub mod cli;
mod configuration;
mod lend;
mod new_key;
mod pool;
mod resize;
pub mod run;
mod socket_access;
pub mod status;
mod store;
