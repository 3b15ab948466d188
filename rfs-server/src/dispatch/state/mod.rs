//! The state of a dispatcher, each part with its lock.
//!
//! # Concurrency
//! See each module; `lock_order` has the order of the locks.

pub(super) mod change_log;
pub(super) mod describe;
pub(super) mod export;
pub(super) mod idle;
pub(super) mod journal;
pub(super) mod lock_order;
pub(super) mod outcome;
pub(super) mod pending;
pub(super) mod quota;
pub(super) mod shards;
pub(super) mod store;
