//! What the hand-overs between threads are made of, so that a model checker can take its place.
//!
//! Modules whose correctness depends on the order of atomics, locks, parking and threads take them from here. As a rule
//! these are the ordinary ones. Built with `--cfg loom` they are loom's, which runs every interleaving of a small program
//! that a bound on preemptions leaves, with every value that a load may see (`ci/test models`).

#[cfg(not(loom))]
mod real;
#[cfg(not(loom))]
pub(crate) use real::*;
#[cfg(not(loom))]
pub(crate) mod thread_slot;

#[cfg(all(loom, test))]
pub(crate) mod model;
#[cfg(loom)]
mod modelled;
#[cfg(loom)]
pub(crate) use modelled::*;
