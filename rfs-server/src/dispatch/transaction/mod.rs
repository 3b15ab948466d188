//! Transactions: parts of a request that hold their shards from beginning to end.
//!
//! # Concurrency
//! A transaction belongs to one thread.

mod cache_rules;
pub(super) mod call;
mod changes;
pub(super) mod eviction;
mod execution;
mod file_space;
pub(super) mod freed_space;
pub(super) mod locked_inodes;
pub(super) mod permission;
pub(super) mod view;
