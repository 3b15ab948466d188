//! Executes requests on the metadata of an export, without a transport.
//!
//! Bottom up:
//! - `state`: the inodes in shards, with their locks and the lock order; the journal and the change
//!   log; recalls and replies that wait.
//! - `transaction`: locks inodes, changes them by a view, logs the changes, queues recalls.
//! - `requests`: a function for each request on files and names.
//! - [`Dispatcher`]: routes requests; its other files attach sessions, deliver recalls and grants,
//!   and carry out requests exactly once.
//! - `persistence`: restores a dispatcher from a log or a snapshot, and describes it for the next.
//!
//! # Concurrency
//! See [`Dispatcher`].

mod attachment;
mod dispatcher;
mod exactly_once;
mod grants;
mod persistence;
mod recalls;
mod requests;
mod state;
pub mod stats;
#[cfg(test)]
mod tests;
mod transaction;

pub use crate::metadata::root::Root;
pub use dispatcher::Dispatcher;
pub use persistence::{
    prior_sessions::Awaited,
    recovery::{Damage, RecoveredState},
};
pub use state::{
    change_log::SnapshotDelta,
    outcome::{HeldReply, Outcome, Sender},
};
