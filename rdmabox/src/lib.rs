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
//! use std::sync::Arc;
//! use rdmabox::{Access, Address, Export, Host, Memory, Peer, RemoteAddr, Service, Session, SessionOptions};
//!
//! /// Tells every client where the memory is.
//! struct Lender {
//!     export: Export,
//! }
//!
//! impl Service for Lender {
//!     fn call(&self, peer: &Peer, _request: &[u8], reply: &mut Vec<u8>) -> Result<(), String> {
//!         let remote = peer.remote_addr(&self.export);
//!         reply.extend_from_slice(&remote.addr.to_le_bytes());
//!         reply.extend_from_slice(&remote.rkey.to_le_bytes());
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::new()?;
//! let memory = Arc::new(Memory::shared("lent", 1 << 20)?);
//! let export = host.export(&memory, Access::REMOTE_ALL)?;
//! let running = host.listen(&["127.0.0.1:0".parse()?], Arc::new(Lender { export }))?;
//!
//! let session = Session::connect(&running.addresses()[0], &SessionOptions::default())?;
//! let mut reply = Vec::new();
//! session.call(b"where?", &mut reply)?;
//! let base = RemoteAddr {
//!     addr: u64::from_le_bytes(reply[..8].try_into()?),
//!     rkey: u32::from_le_bytes(reply[8..12].try_into()?),
//! };
//!
//! // No code of the service runs for these two.
//! session.write(base, b"hello")?;
//! let mut back = [0; 5];
//! session.read(base, &mut back)?;
//! assert_eq!(&back, b"hello");
//! assert_eq!(session.stats().get("write_requests"), 1);
//! # Ok(())
//! # }
//! ```
//!
//! `DESIGN.md` beside this crate tells how it is built, what an operation costs, and why.

pub mod admission;
pub mod batch;
pub mod memory;
pub mod polling;
pub mod provider;
mod rpc;
mod runtime;
pub mod session;
pub mod stats;
mod sync;
pub mod verbs;

pub use memory::{Buffer, Memory, MemoryError, PreMrThreshold, RecvBuf, SendBuf};
pub use session::*;
