//! The benchmark harness behind `iozone/run`.
//!
//! Starts `rfs-server` and `rfs-fuse` as ordinary programs, runs IOzone on the mount and on the
//! ceilings (a FUSE file system that only copies, and tmpfs), and reports tables, JSON and an SVG
//! chart. Measurements are external, except for the counters of the server. The modules
//! [`compare`], [`metadata`], [`scaling`] and [`fresh`] are further programs on the same
//! [`target`]s.
//!
//! # Concurrency
//! The main thread starts and ends all programs. Helper threads only read the pipes of children.
//! Every wait has a deadline and checks the interrupt flag.
#![forbid(unsafe_code)]

pub mod cli;
pub mod compare;
pub mod engine;
pub mod fresh;
pub mod markdown;
pub mod memory;
pub mod metadata;
pub mod mount;
pub mod pace;
pub mod places;
pub mod progress;
pub mod report;
pub mod runner;
pub mod sample;
pub mod scaling;
pub mod size;
pub mod target;
pub mod together;
pub mod usage;
pub mod workdir;

pub use measure::{Error, Result, error, interrupt, machine, process};
