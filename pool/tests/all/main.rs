//! Tests of stores with real sessions: one test program, so that it is linked once.
//!
//! A module is a topic. Each test must stand other tests beside it in its process, as `cargo test`
//! runs them. nextest gives each test its own process.

mod chunks;
mod earlier_sessions;
mod owner;
#[path = "../support/mod.rs"]
mod support;
