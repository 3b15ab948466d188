//! Tests of pagers, lenders and the program: one test program, so that it is linked once.
//!
//! A module is a topic. Each test must stand other tests beside it in its process, as `cargo test`
//! runs them. nextest gives each test its own process.
//! `core_sharing` looks at all fault threads of its process, and `swap` ends all swap areas of the
//! machine: they are programs of their own.

mod loss;
mod memory;
mod nbd;
mod random;
mod status;
#[path = "../support/mod.rs"]
mod support;
mod wrong_sizes;
