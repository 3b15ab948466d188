//! `rdmabox-bench`: measures the runtime like perftest, and repeats the experiments of the RDMAbox
//! paper.
//!
//! Every output names the provider. Results of software providers show trends; they make no claim
//! about RDMA hardware. The modules, the lowest first: [`load`] (a checked load), [`servers`],
//! [`run`] (one run: workers and their requests), [`sweep`] (combinations of options, and rounds),
//! [`report`] (output), [`experiment`] (the paper), and [`cli`].
//!
//! # Concurrency
//! The main thread starts servers and workers, waits for them, and draws progress. Reported usage
//! excludes its processor time. Each worker owns its buffers, random numbers and histogram, which
//! are merged at the end. A shared cursor is one atomic per peer.
#![forbid(unsafe_code)]

pub mod cli;
pub mod error;
pub mod experiment;
pub mod load;
pub mod program;
pub mod report;
pub mod run;
pub mod servers;
pub mod sweep;
pub mod usage;

pub use error::{Error, Result};
