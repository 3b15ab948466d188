//! The benchmark harness behind `iozone/run`.
//!
//! Starts `rfs-server` and `rfs-fuse` as ordinary programs. It measures their mounts beside other
//! file systems and the ceilings (a FUSE file system that only copies, and tmpfs). It reports
//! tables, JSON and SVG charts. Measurements are external, except for the counters of the server.
//!
//! A [`plan`] has the measurements. The [`harness`] runs it: it starts each [`target`], has an
//! [`engine`] or a [`load`] measure it, and keeps the results. A [`report`] has the parts that all
//! plans print. Imports point from the plans down: report, engine, harness, target, load, cli.
//!
//! # Concurrency
//! The main thread starts and ends all programs. Helper threads only read the pipes of children.
//! Every wait has a deadline and checks the interrupt flag.
#![forbid(unsafe_code)]

pub mod cli;
pub mod engine;
pub mod harness;
pub mod load;
pub mod plan;
pub mod report;
pub mod sample;
pub mod size;
pub mod target;

pub use measure::{Error, Result, error, interrupt, machine, process};
