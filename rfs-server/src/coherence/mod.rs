//! Coherence of the clients' caches: cache holders, recalls, and replies that wait for them.
//!
//! The rules, by kind of change, are in `dispatch::transaction::cache_rules`.
//!
//! # Concurrency
//! Plain values, except for [`alarm`] and `run_clock`, which any thread may use.

pub mod alarm;
pub mod cache_holders;
pub mod held_replies;
pub mod orphans;
pub mod recall_queue;
pub(crate) mod run_clock;

pub use alarm::Alarm;
