//! Tests of masters, stores and clients: one test program, so that it is linked once.
//!
//! A module is a topic. Each test must stand other tests beside it in its process, as `cargo test`
//! runs them. nextest gives each test its own process.

mod barrier;
mod graph;
mod loss;
mod sort;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod updates;
