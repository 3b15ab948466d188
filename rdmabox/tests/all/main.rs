//! Tests of sessions between hosts and clients: one program, so that it is linked once.
//!
//! A module is a topic. Each test must stand other tests beside it in its process, as `cargo test`
//! runs them. nextest gives each test its own process. Tests that count objects of their process,
//! such as allocations, descriptors or threads, are programs of their own. So is the conformance
//! suite of the providers.

mod examples;
mod mechanisms;
#[path = "../support/mod.rs"]
mod support;

/// Calls of services.
mod calls {
    mod call_futures;
    mod concurrent_calls;
    mod deferred_replies;
    mod refused_calls;
    mod remote_fetching;
    mod started_calls;
}

/// One-sided requests: their effects, errors, bounds and traces.
mod one_sided {
    mod atomic_ops;
    mod direct_execution;
    mod exports;
    mod load;
    mod modelled_card;
    mod multi_session_waits;
    mod refused_parts;
    mod remote_mr;
    mod timeouts;
    mod trace;
}

/// Sessions: connecting, access, and every way to end.
mod sessions {
    mod connect_errors;
    mod end_to_end;
    mod fencing;
    mod foreign_socket;
    mod host_death;
    mod intruders;
    mod keys;
    mod life_cycle;
    mod session_end;
    mod tls;
}

/// Started one-sided requests: their transfers, and every way to wait for them.
mod transfers {
    mod callbacks;
    mod futures;
    mod plugs;
    mod started_lists;
    mod started_requests;
    mod wait_timeouts;
}

#[test]
#[ignore = "runs as the host process of other tests"]
fn host() {
    support::process::serve();
}
