//! Tests of sessions between hosts and clients: one program, so that it is linked once.
//!
//! A module is a topic. Each test must stand other tests beside it in its process, as `cargo test`
//! runs them. nextest gives each test its own process. Tests that count objects of their process,
//! such as allocations, descriptors or threads, are programs of their own, and so is the
//! conformance suite of the providers.

mod across;
mod atomic_ops;
mod awaited;
mod callbacks;
mod calls_together;
mod connect_errors;
mod deferred;
mod ending;
mod examples;
mod exports;
mod fencing;
mod fetched;
mod foreign_socket;
mod intruders;
mod keys;
mod killed;
mod life_cycle;
mod load;
mod mechanisms;
mod modelled_card;
mod on_the_spot;
mod pending_calls;
mod plugs;
mod refused_calls;
mod refused_parts;
mod remote_mr;
mod session;
mod started;
mod started_calls;
mod started_lists;
#[path = "../support/mod.rs"]
mod support;
mod timeouts;
mod tls;
mod trace;
mod wait_timeout;

#[test]
#[ignore = "runs as the host process of other tests"]
fn host() {
    support::process::serve();
}
