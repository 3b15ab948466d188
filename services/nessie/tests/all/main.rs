//! Tests of nodes, clients and the programs: one test program, so that it is linked once.
//!
//! A module is a topic. Each test must stand other tests beside it in its process, as `cargo test`
//! runs them. nextest gives each test its own process.

mod bench;
mod joining;
mod limits;
mod random;
#[path = "../support/mod.rs"]
mod support;
