//! Command lines of the programs.
//!
//! # Concurrency
//! Plain values.

pub mod client;
pub mod node;
