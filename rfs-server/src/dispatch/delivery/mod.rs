//! Delivers grants, recalls, and the replies that wait for them.
//!
//! # Concurrency
//! As the dispatcher.

pub(in crate::dispatch) mod grants;
pub(in crate::dispatch) mod recalls;
