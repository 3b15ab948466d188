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
//! let memory = MemoryServer::locate(&session)?;
//! // No code of the host's program runs for these two.
//! session.write(memory.for_write(0, 5)?, b"hello")?;
//! let mut back = [0; 5];
//! session.read(memory.for_read(0, 5)?, &mut back)?;
//! assert_eq!(&back, b"hello");
//! assert_eq!(session.stats().write_requests, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to go from here
//!
//! | question | page |
//! |-|-|
//! | which requests are there, and which form suits my program | [`guide`], [`Session`] |
//! | how do I lend memory, and serve calls | [`MemoryServer`], [`Host`], [`Service`] |
//! | which option does what, and which counter shows it | [`SessionOptions`], [`StatsSnapshot`] |
//! | what does `Ok` promise, and what is known after an error | [`guide`], [`RequestError`] |
//! | how do I authenticate and encrypt | [`Key`], [`tls`] |
//! | how do I use queue pairs myself | [`verbs`], [`provider`] |
//!
//! # Features and platforms
//!
//! Linux, 64 bits, little-endian; Rust 1.88 or later. Tests run on x86_64. Without features the
//! crate has shared memory and TCP, and needs no C library.
//!
//! - `ibverbs`: RDMA devices and Soft-RoCE. libibverbs is loaded when a program first asks for a
//!   device, so the program also starts where the library is missing.
//! - `bytes`: `Bytes` and `BytesMut` are buffers of started requests ([`SendBuf`], [`RecvBuf`]).
//! - `faults`: a device that fails on purpose, to test how a program handles errors.
//!
//! # Threads
//!
//! All types are `Send` and `Sync`, and a [`Session`] serves any number of threads. A blocked
//! thread polls for its own completion. The crate starts these threads, and no others:
//!
//! | thread | of | when |
//! |-|-|-|
//! | `rdmabox-engine` | each host and each session over shared memory; each host over TCP | moves the bytes of TCP peers, and notices the end of a peer |
//! | `rdmabox-poll-N` | a session | when a started request first waits without a thread that polls |
//! | `rdmabox-calls` | a session | when a [`PendingCall`] is first awaited |
//! | `rdmabox-gather` | a session | when a small request is started while others are under way and no thread polls, or when one thread has posted for others for 1 ms |
//! | `rdmabox-recover` | a session | while a broken queue pair is replaced |
//! | `rdmabox-lease` | a session | if the host asks for a sign of life |
//! | `rdmabox-watch` | a device | with `ibverbs`: receives its asynchronous events |
//! | `rdmabox-accept` | a host | one for each address |
//! | `rdmabox-session` | a host | one for each client |
//! | `rdmabox-rpc-N` | a host | execute calls; their number is an option |
//!
//! # Errors, panics, the end
//!
//! Requests return [`RequestError`], connecting [`ConnectError`], hosts [`HostError`]. Each variant
//! says whether a retry is safe. Input from a peer never panics; a peer that breaks the protocol
//! loses its session. Dropping a [`Session`] ends it without blocking ([`Session::close`] waits for
//! started calls), and dropping a [`HostHandle`] stops the host
//! and ends the sessions of its clients.
//!
//! # Safety
//!
//! Devices access memory that the compiler knows nothing of. Blocking requests lend the caller's
//! buffer until the device has released it; started requests own theirs. Lent [`Memory`] is never
//! exposed as a slice. The [`guide`] has the reasons. The three ways to give the crate memory
//! without these checks are unsafe: [`SendBuf`], [`RecvBuf`], and registering borrowed memory.

pub mod admission;
mod auth;
#[doc(hidden)]
pub mod batch;
#[doc(hidden)]
pub mod counted;
mod error;
pub mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod mapping;
pub mod memory;
#[doc(hidden)]
pub mod polling;
pub mod provider;
mod rpc;
mod runtime;
pub mod session;
#[doc(hidden)]
pub mod size;
pub mod stats;
mod sync;
pub mod tls;
pub mod verbs;

pub use memory::{Buffer, Memory, MemoryError, OwnedOp, PreMrThreshold, RecvBuf, SendBuf, Slice};
pub use session::*;

#[doc = include_str!("../GUIDE.md")]
pub mod guide {}
