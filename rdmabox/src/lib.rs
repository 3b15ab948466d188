//! A userspace RDMA optimization runtime.
//!
//! The runtime applies the techniques of the RDMAbox paper to services that transfer bytes
//! between machines. One merge queue takes the requests of all threads; adjacent requests become
//! one work request, and others share a doorbell. A window limits the bytes in flight. Small
//! requests are copied through registered memory, and large buffers are registered. Several queue
//! pairs share the load. Waiters poll while polling succeeds, then sleep. The runtime uses a
//! model of RDMA verbs ([`verbs`]). Its [`provider`]s run on RDMA devices (feature `ibverbs`),
//! over shared memory within a host, and over TCP, with the same semantics.
//!
//! A [`Host`] exports memory and answers calls. A [`Session`] reads and writes that memory with
//! one-sided operations:
//!
//! ```
//! use rdmabox::{MemoryServer, Session, SessionOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // On one machine: 1 MiB to lend, and an address for clients.
//! let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
//! let address = host.addresses()[0].to_string();
//!
//! // On another one.
//! let session = Session::connect(&address.parse()?, &SessionOptions::default())?;
//! let base = MemoryServer::locate(&session)?.base;
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
//! `GUIDE.md` in the crate's folder explains how to issue requests, each option, the counters, and
//! the guarantees. `docs/design/` of the repository explains the structure, the cost of each
//! operation, and the reasons. `examples/` has programs to start from.

pub mod admission;
mod auth;
pub mod batch;
#[doc(hidden)]
pub mod counted;
mod error;
pub mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod mapping;
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
