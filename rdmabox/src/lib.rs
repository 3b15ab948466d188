//! A userspace RDMA optimization runtime.
//!
//! A service that moves bytes between machines gets here what the RDMAbox paper found to matter at the network card:
//! requests of all threads meet in one merge queue, where adjacent ones become one work request and the others share
//! a doorbell; what is in flight is bounded by a window; small requests are copied through registered memory, large ones
//! registered as they are; several queue pairs share the load; and whoever waits polls as long as that pays, then
//! sleeps. It runs on a model of RDMA verbs ([`verbs`]) with [`provider`]s for RDMA devices (feature `ibverbs`), and in software over
//! shared memory inside a host and over TCP between hosts, with the same semantics on all.
//!
//! A [`Host`] exports memory and answers calls, a [`Session`] reads and writes that memory one-sidedly:
//!
//! ```
//! use rdmabox::{Lender, Session, SessionOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // On one machine: 1 MiB to lend, and an address for clients.
//! let host = Lender::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
//! let address = host.addresses()[0].to_string();
//!
//! // On another one.
//! let session = Session::connect(&address.parse()?, &SessionOptions::default())?;
//! let base = Lender::locate(&session)?.base;
//! // No code of the host's program runs for these two.
//! session.write(base, b"hello")?;
//! let mut back = [0; 5];
//! session.read(base, &mut back)?;
//! assert_eq!(&back, b"hello");
//! assert_eq!(session.stats().write_requests, 1);
//! # Ok(())
//! # }
//! ```
//!
//! `GUIDE.md` beside this crate tells how to use it: the three ways of making requests, what each option does, how to read the
//! counters, what is promised. `DESIGN.md` tells how it is built, what an operation costs, and why. `examples/` has programs to
//! start from.

pub mod admission;
pub mod batch;
#[doc(hidden)]
pub mod counted;
pub mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod memory;
pub mod polling;
pub mod provider;
mod rpc;
mod runtime;
pub mod session;
pub mod size;
pub mod stats;
mod sync;
pub mod tls;
pub mod verbs;

pub use memory::{Buffer, Memory, MemoryError, PreMrThreshold, RecvBuf, SendBuf};
pub use session::*;

#[cfg(doctest)]
#[doc = include_str!("../GUIDE.md")]
struct Guide;
