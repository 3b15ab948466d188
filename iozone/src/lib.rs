//! The benchmark harness behind `iozone/run`.
//!
//! Starts `rfs-server` and `rfs-fuse` as ordinary programs, runs IOzone on the mount, does the same on the
//! ceilings (a FUSE file system that only copies, and tmpfs), and reports: one table per provider, JSON and
//! an SVG chart. Everything is measured from outside; only what a server has counted is asked of it. What it
//! shares with other benchmark programs is in the crate `measure`.
//!
//! * [`cli`]: the options; [`size`]: byte sizes and the choice of a file size;
//! * [`target`]: what can be measured, behind one trait; [`process`] and [`mount`]: guards that leave nothing
//!   behind; [`interrupt`]: Ctrl-C;
//! * [`engine`]: what measures: IOzone, or the built-in engine with the same access patterns;
//! * [`runner`]: the order of the runs; [`sample`]: numbers and medians;
//! * [`report`]: table, JSON and chart, all pure functions of a [`report::Report`]; [`markdown`]: tables;
//! * [`places`]: options on which all programs agree; [`usage`]: processor time and memory of a target's programs;
//! * [`memory`]: what runs take, at hand before they begin;
//! * [`compare`]: a program beside it: rfs beside its ceilings, other file systems, and itself without its optimizations;
//! * [`metadata`]: another, on the same targets: files created, looked at, listed and removed per second.
//! * [`scaling`]: one more: how all of it grows with threads, files, mounts, and the size and number of files.
//! * [`fresh`]: servers that have just been started, and memory that nobody has used.
//!
//! Threading: one main thread starts and ends everything; helper threads only drain pipes of children. Every
//! wait has a deadline and watches the interrupt flag.
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
