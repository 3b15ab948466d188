//! The master as a pure state machine.
//!
//! [`Machine::apply`] takes the time and an [`Input`], and returns [`Output`]s: replies to calls,
//! and orders for stores. Equal inputs give equal states, so a log of inputs restores the state.
//!
//! Invariants, which a property test checks after every input:
//! - a chunk is free, reserved, bound, leased or fenced, and exactly one of them;
//! - a namespace has the chunks that the account says it has, each of them once;
//! - each version of a region has references or is the newest one, and has all of its chunks,
//!   unless a store is lost;
//! - a lost client keeps its references until no request of it can reach a store.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

mod apply;
mod clients;
mod invariants;
mod io;
mod namespaces;
mod regions;
mod reserve;
mod state;
mod stores;
#[cfg(test)]
mod tests;
mod versions;

pub use self::{
    io::{Input, Output, Settings},
    state::Machine,
};
