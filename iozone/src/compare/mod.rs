//! Compares rfs with other file systems on one machine: the program `rfs-compare` behind
//! `iozone/run --compare`.
//!
//! In every round all targets are running, but only one of them is measured at a time. Compared
//! measurements are therefore seconds apart. A result is a ratio of medians over the rounds.
//!
//! [`cli`] has the options, [`lineup`] the targets, [`mod@column`] their columns. [`plan`] orders
//! the turns, [`measure`] runs the rounds, and [`meter`] takes one measurement with [`fio`] or an
//! [`Engine`](crate::engine::Engine). [`ratios`] computes medians and ratios, [`requirements`]
//! judges them, and [`report`], [`table`] and [`charts`] show them.

pub mod charts;
pub mod cli;
pub mod column;
pub mod fio;
pub mod lineup;
pub mod measure;
pub mod meter;
pub mod plan;
pub mod ratios;
pub mod report;
pub mod requirements;
pub mod table;
