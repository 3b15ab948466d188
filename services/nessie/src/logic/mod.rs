//! The protocol as state machines: no I/O, no locks, no clock.
//!
//! Each operation is a machine that turns the answer of one remote operation into the next one.
//! `node` runs machines on sessions, and `simulation` runs them against each other.

pub(crate) mod allocator;
pub(crate) mod context;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod operations;
pub(crate) mod placement;
pub(crate) mod verb;
pub(crate) mod word;
