//! State that outlives a server: recovery from a log, sessions in the log, and snapshots.
//!
//! # Concurrency
//! See each module.

pub(super) mod log_upkeep;
pub(super) mod previous_mounts;
pub(super) mod recovery;
pub(super) mod session_log;
pub(super) mod snapshot;
