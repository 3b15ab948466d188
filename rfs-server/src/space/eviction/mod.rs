//! Eviction: which files leave an export because space runs short, or because they are old.
//!
//! Bottom up: [`policy`] has the rules and the marks, and `use_list` an order of files by their
//! last use. [`candidates`] has the files that may go with their names. [`state`] has the
//! candidates under their lock with the counters, and [`evictor`] the thread. The dispatcher tells
//! the candidates which files are opened, closed and renamed, and removes files
//! (`dispatch::placement`).
//!
//! # Concurrency
//! See each module; `state` has the locks.

pub mod candidates;
pub mod evictor;
pub mod policy;
pub mod state;
mod use_list;

pub use candidates::{Candidate, FileId, Home};
pub use evictor::Evictor;
pub use policy::{EvictionPolicy, Filling, Shortage};
pub use state::{Eviction, EvictionCounts, Reason};
