//! How a running program of rfs answers questions about itself.
//!
//! A program answers on a control socket ([`control`]), and on an HTTP address ([`metrics`]). Both
//! answers come from one struct, which the program collects from atomics and short locks: a session
//! that hangs delays no answer. [`text`] has tables for people, and [`watch`] repeats them.
//! [`mounts`] finds the control sockets of mounts. [`process`], [`latency`] and [`logging`] are
//! parts that all programs share, and [`expiry`] warns about certificates.
//!
//! # Concurrency
//! Each control socket and each metrics address has a thread that blocks in `accept`. An idle
//! program wakes up for neither.
#![forbid(unsafe_code)]

pub mod control;
pub mod expiry;
pub mod latency;
pub mod logging;
pub mod metrics;
pub mod mounts;
pub mod process;
pub mod text;
pub mod watch;
