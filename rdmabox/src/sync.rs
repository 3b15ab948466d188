//! Synchronization primitives that a model checker can replace.
//!
//! Modules whose correctness depends on the order of atomics, locks, parking and threads import
//! them from here. Normally these are the std and parking_lot types. With `--cfg loom` they are
//! loom's types. Loom runs every interleaving of a small program within a bound on preemptions,
//! with every value that a load may return (`ci/test models`).

#[cfg(not(loom))]
mod real;
#[cfg(not(loom))]
pub(crate) use real::*;
#[cfg(not(loom))]
pub(crate) mod thread_slot;

#[cfg(not(loom))]
mod membarrier;
#[cfg(any(not(loom), test))]
mod reader_lock;

#[cfg(loom)]
mod loom_primitives;
#[cfg(all(loom, test))]
pub(crate) mod model;
#[cfg(loom)]
pub(crate) use loom_primitives::*;
