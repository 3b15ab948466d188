//! The command line of the program. `main.rs` beside this file is the program.
//!
//! # Concurrency
//! Plain values.

pub mod cli;
