//! Tests of clients, servers and the program: one test program, so that it is linked once.
//!
//! A module is a topic. Each test must stand other tests beside it in its process, as `cargo test`
//! runs them. nextest gives each test its own process.
//! `allocations` counts in the allocator of its process: it is a program of its own.

mod calls;
mod program;
mod random;
#[path = "../support/mod.rs"]
mod support;
mod text;
