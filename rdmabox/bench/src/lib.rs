//! `rdmabox-bench`: measures the runtime like perftest, and repeats the experiments of the RDMAbox
//! paper.
//!
//! Every output names the provider. Results of software providers show trends; they make no claim
//! about RDMA hardware. The main modules are [`cli`], [`load`] (a checked load), [`run`] (one run),
//! [`worker`] (a thread of the load), [`requests`] (submission), [`fleet`] (servers), [`matrix`]
//! and [`runner`] (combinations and rounds), [`report`] (output), and [`experiment`] (the paper).
//!
//! # Concurrency
//! The main thread starts servers and workers, waits for them, and draws progress. Reported usage
//! excludes its processor time. Each worker owns its buffers, random numbers and histogram, which
//! are merged at the end. A shared cursor is one atomic per peer.
#![forbid(unsafe_code)]

pub mod cli;
pub mod clock;
pub mod error;
pub mod experiment;
pub mod fleet;
pub mod load;
pub mod matrix;
pub mod metric;
pub mod pattern;
pub mod program;
pub mod protocol;
pub mod record;
pub mod report;
pub mod requests;
pub mod run;
pub mod runner;
pub mod server;
pub mod settings;
pub mod usage;
pub mod value;
pub mod worker;

pub use error::{Error, Result};
