//! `rdmabox-bench`: measures the runtime in the shape of perftest, and repeats the experiments of the RDMAbox paper.
//!
//! It runs on software providers and on RDMA devices, and every output says on which: of software, shapes are reported, and a
//! figure of the paper's hardware is never claimed.
//!
//! * [`cli`]: the command line; [`load`]: what one run does, checked; [`settings`]: options as text, so that any of
//!   them can be swept; [`value`]: how their values are written;
//! * [`pattern`]: which addresses are used, pure; [`requests`]: how requests are kept outstanding, behind one trait;
//!   [`worker`]: a thread of the load; [`record`]: what it records; [`clock`]: by which clock; [`run`]: one run, start to end;
//! * [`server`] and [`protocol`]: the other end; [`fleet`]: as many of them as a run wants; [`usage`]: processor time
//!   and context switches;
//! * [`matrix`]: combinations of options; [`runner`]: their rounds, interleaved;
//! * [`metric`]: what is computed from a sample; [`report`]: tables, JSON and charts;
//! * [`program`]: from the command line to the output;
//! * [`experiment`]: the figures and the table of the paper, as matrices with a comment.
//!
//! Threading: the main thread starts servers and workers, waits, and draws progress; its own processor time is
//! left out of what is reported. Each worker owns its buffers, its random numbers and its histogram; they are merged
//! at the end. A shared cursor is one atomic per peer.
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
