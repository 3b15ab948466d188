//! Fuzzing of all inputs that the programs take from peers, files and command lines.
//!
//! A [`Target`] is a function that takes any bytes and panics if the code under test breaks a
//! promise. Its seeds are valid inputs. [`mutate`] derives an input from a seed and a number,
//! reproducibly. [`driver`] runs a target and detects panics, hangs, and leaks of memory,
//! descriptors and threads. [`supervisor`] runs each target in its own process, so that a killed
//! process is also a failure. `ci/trials/fuzz` runs all targets.
//!
//! The targets do not use coverage feedback. Instead, the seeds contain every message, and
//! mutations change only a small part of a message, so that inputs pass the first checks.
#![forbid(unsafe_code)]

pub mod driver;
pub mod flood;
pub mod mutate;
pub mod supervisor;
pub mod targets;
pub mod usage;

pub use targets::Target;
