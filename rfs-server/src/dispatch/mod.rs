//! Executes requests on the metadata of an export, without a transport.
//!
//! Bottom up:
//! - `state`: shards of inodes and the lock order, journal, change log, recalls, held replies.
//! - `transaction`: locks inodes, changes them by a view, logs the changes, queues recalls.
//! - `requests`: a function for each request on files and names.
//! - `delivery`: delivers grants, recalls, and the replies that wait for them.
//! - `placement`: finds the files that have data in a store, and moves their data; evicts files.
//! - `persistence`: restores an export from a log or a snapshot, and describes it for the next.
//! - `request_table`: the name of each kind of request, its payload, and its waits.
//! - `attachment`, `exactly_once`: sessions, and requests that take effect once.
//! - [`Dispatcher`]: owns the state, and lends each job (a struct) the parts that it needs.
//!
//! # Concurrency
//! See [`Dispatcher`].

mod attachment;
mod delivery;
mod dispatcher;
mod exactly_once;
mod persistence;
mod placement;
mod request_table;
mod requests;
mod state;
pub mod stats;
#[cfg(test)]
mod tests;
mod transaction;

pub use crate::metadata::root::Root;
pub use attachment::Attachments;
pub use delivery::recalls::RecallDelivery;
pub use dispatcher::Dispatcher;
pub use persistence::{
    log_upkeep::LogUpkeep,
    previous_mounts::{Awaited, PreviousMounts},
    recovery::{Damage, RecoveredState},
};
pub use placement::{EvictionActivity, Evictions, LostFile, LostFiles, Moved, Placement};
pub use state::{
    change_log::SnapshotDelta,
    outcome::{HeldReply, Outcome, Sender},
};
