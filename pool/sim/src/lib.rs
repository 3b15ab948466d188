//! Simulates a pool of many stores and clients.
//!
//! [`placement`] has files in stores, by the functions that the server and RStore use. [`run()`]
//! simulates requests with links of stores and machines of clients, event by event. [`growth`] and
//! [`addition`] are the results over growing pools. [`calibration`] compares the model with
//! measured processes.
//!
//! # Concurrency
//! One thread. The library does no I/O.
#![forbid(unsafe_code)]

pub mod addition;
pub mod calibration;
pub mod event;
pub mod growth;
pub mod link;
pub mod model;
pub mod nodes;
pub mod placement;
mod run;

pub use run::{Outcome, run};
