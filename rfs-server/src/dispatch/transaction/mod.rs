//! Transactions: parts of a request that hold their shards from beginning to end.
//!
//! # Concurrency
//! A transaction belongs to one thread.

mod cache_rules;
pub(super) mod call;
mod changes;
pub(super) mod eviction;
pub(super) mod freed;
pub(super) mod locked_inodes;
pub(super) mod permission;
mod transact;
pub(super) mod view;
