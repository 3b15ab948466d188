//! The harness: runs a plan and keeps its results.
//!
//! A [`Plan`] is data: targets, their tests, rounds and limits. A [`Meter`] takes one measurement.
//! [`run()`] starts and stops the targets, has each test measured on each target in alternating
//! order, and returns the [`Measured`] values.

mod order;
mod pace;
mod plan;
mod results;
mod run;
pub mod usage;

pub use order::{Turn, sorted};
pub use plan::{Entrant, Meter, Outcome, Plan, Site, Start};
pub use results::{Measured, Reading, Series, TargetInfo};
pub use run::run;
