//! Bad input: what the programs take from peers, files and command lines, given bytes that nobody would send.
//!
//! A [`Target`] is a function of any bytes that panics if what it promises does not hold, with seeds, which are good input.
//! [`mutate`] makes an input of a seed and a number, always the same one; [`drive`] gives a target so many of them, and finds what
//! panics, hangs, or keeps memory, descriptors or threads; [`supervise`] runs targets in processes of their own, so that one
//! that is killed is a failure like the others. `ci/fuzz` runs all of them.
//!
//! The targets know nothing of coverage: they are seeded with every message that there is, and mutations keep most of a message as it
//! is, so that they get behind the first check.
#![forbid(unsafe_code)]

pub mod drive;
pub mod flood;
pub mod mutate;
pub mod supervise;
pub mod targets;
pub mod usage;

pub use targets::Target;
