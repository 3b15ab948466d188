//! Measures how rfs scales: the program `rfs-scaling` behind `iozone/run --scaling`.
//!
//! A series increases one load: threads on one file, files, mounts of one server, the size of a
//! file, or the number of files. At each point every target is started afresh and performs the same
//! work. A result is the median of interleaved rounds.
//!
//! [`cli`] has the options; [`plan`] the series, points and their costs. [`data`] and [`names`] are
//! the loads, each in a child process, and [`latency`] records their requests. [`measure`] takes a
//! point, [`run`] the rounds, and [`lineup`] makes the targets. [`report`] is the result as data,
//! [`check`] judges it, and [`table`], [`charts`] and [`document`] show it.

pub mod charts;
pub mod check;
pub mod cli;
pub mod data;
pub mod document;
pub mod latency;
pub mod lineup;
pub mod measure;
pub mod names;
pub mod plan;
pub mod report;
pub mod run;
pub mod table;
