//! Two queue pairs on two devices of one process, which stand for two hosts, and shared helpers.
//!
//! A side may progress only when it is polled, so every wait polls both sides. Polled completions
//! are kept until a test asks for them. A wait ends with a panic after [`WAIT_LIMIT`]; no result
//! depends on the clock.

mod buf;
mod config;
mod pair;
mod random;
mod requests;
mod setup;
mod side;

pub(crate) use self::{
    buf::{Buf, GUARD},
    config::{Config, Provider, tcp_pair, tls_pair},
    pair::Pair,
    random::{Random, pattern},
    requests::{SEND, read, refused, signaled, unsignaled, write},
    setup::{Setup, connect, pair},
    side::Side,
};

use std::{
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes that works.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Tries until there is an answer.
pub(crate) fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < WAIT_LIMIT, "waited in vain for {what}");
        thread::yield_now();
    }
}
