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
//! | how do I lend memory, and serve calls | [`MemoryServer`], [`Host`], [`Service`], [a host as a program](guide#a-host-as-a-program) |
//! | how do the options work, and which counter shows an effect | [`guide`](guide#options), [`SessionOptions`], [`StatsSnapshot`] |
//! | how do I copy much data without a copy or a registration per request | [`guide`](guide#bulk-copies), [`Buffer`] |
//! | which guarantees does `Ok` give, and which facts hold after an error | [`guide`](guide#guarantees), [`RequestError`] |
//! | how are the claims of a dead client freed | [`guide`](guide#claims-and-lost-clients) |
//! | how does a host behave if its memory is larger than the machine's | [`guide`](guide#memory-that-runs-out) |
//! | how do I authenticate and encrypt | [`Key`], [`tls`] |
//! | how do I use queue pairs myself | [`verbs`], [`provider`] |
//!
//! # Features and platforms
//!
//! Linux, 64 bits, little-endian; Rust 1.88 or later. Tests run on x86_64. Without features the
//! crate has shared memory and TCP. It needs no C library beyond libc. Its build needs a C compiler
//! (`gcc`, `libc6-dev`) for `ring`, which `rustls` uses. The [`guide`](guide#quick-start) lists the
//! packages for `ibverbs`.
//!
//! - `ibverbs`: RDMA devices and Soft-RoCE. libibverbs is loaded when a program first asks for a
//!   device, so the program also starts where the library is missing.
//! - `bytes`: `Bytes` and `BytesMut` are buffers of started requests ([`SendBuf`], [`RecvBuf`]).
//! - `model`: a modelled network card ([`SessionOptions`] has a field `card`), for experiments.
//! - `faults`: a device that fails on purpose, to test how a program handles errors. A
//!   `provider::fault::Plan`, made of `Faults`, goes to `SessionBuilder::faults`.
//!
//! # Threads
//!
//! All types are `Send` and `Sync`, with two exceptions: [`Reply`] belongs to one call of a
//! service, and [`PendingReply`] is only `Send`. A [`Session`] serves any number of threads, by
//! reference or as an `Arc`. A blocked thread polls for its own completion, and for the completions
//! of others meanwhile.
//!
//! A callback and [`StartedReply`] run on the thread that finds the completion: it may be any
//! thread that waits in the session. No method of a session blocks there; blocking requests fail
//! with [`RequestError::Invalid`]. The methods of a [`Service`] run on threads of the host, several
//! at the same time.
//!
//! A thread that waits with [`PollingMode::Adaptive`] polls while polling succeeds, then sleeps in
//! the kernel. The crate starts these threads, and no others:
//!
//! | thread | of | when, and its job |
//! |-|-|-|
//! | `rdmabox-engine` | each host and each session over shared memory; each host over TCP | from the start. It moves the bytes of TCP peers, and notices the end of a peer |
//! | `rdmabox-poll-N` | a session | when a started request first waits without a thread that polls |
//! | `rdmabox-calls` | a session | when a [`PendingCall`] is first awaited |
//! | `rdmabox-gather` | a session | when a small request is started while others are under way and no thread polls, or when one thread has posted for others for 1 ms |
//! | `rdmabox-recover` | a session | while a broken queue pair is replaced |
//! | `rdmabox-lease` | a session | if the host asks for a sign of life |
//! | `rdmabox-watch` | a device | with `ibverbs`: receives its asynchronous events |
//! | `rdmabox-accept` | a host | one for each address |
//! | `rdmabox-session` | a host | one for each client |
//! | `rdmabox-rpc-N` | a host | execute calls; their number is an option |
//! | `rdmabox-resolver` | the process | one for each look-up of a host's name, until the system's resolver answers |
//! | `rdmabox-lost` | the process | from [`memory::survive`] on: reports that a page of shared memory is lost |
//! | `rdmabox-restrict` | the process | for a moment: opens shared memory so that no holder can shorten it |
//!
//! # Errors, panics, the end
//!
//! | error | of | is a retry safe |
//! |-|-|-|
//! | [`RequestError`] | requests and calls | [`is_retryable`](RequestError::is_retryable) and [`outcome_unknown`](RequestError::outcome_unknown) tell |
//! | [`Failed`] | started requests: a `RequestError` with the buffer. `?` into a `Box<dyn Error>` keeps both | the same |
//! | [`RemoteMrError`] | addresses of a [`RemoteMr`] | no: no request was made, and the same range fails again |
//! | [`ConnectError`] | connecting | yes: nothing is left behind |
//! | [`HostError`] | hosts and exports | yes, except for `StillMapped` and `DeviceStuck` |
//! | [`CallError`] | an answer of a service instead of a reply | the service defines it |
//!
//! Input from a peer never panics; a peer that breaks the protocol loses its session. The crate
//! panics for mistakes of its caller alone, and each method that can has a section "Panics".
//!
//! | dropped value | effect | blocks |
//! |-|-|-|
//! | the last handle of a [`Session`] | ends it, as [`Session::close`] without a wait for started calls. Requests fail with [`RequestError::Disconnected`] | no |
//! | [`Transfer`] | the request goes on; its buffer is dropped when it is done | no |
//! | [`PendingCall`] | cancels the call; the host may execute it | no |
//! | [`PendingReply`] | the call ends at the client with [`RequestError::Unanswered`] | no |
//! | [`Export`] | later requests are refused; [`HostHandle::withdraw`] also waits for those under way | no |
//! | [`HostHandle`] | stops the host, and ends the sessions of its clients | until its threads have ended |
//! | [`Memory`] | unmaps it, when no export and no request uses it any more | no |
//!
//! # Log
//!
//! Where a page says that a host or a session logs something, it goes to the crate [`log`], with
//! targets that begin with `rdmabox`. A program without a logger sees nothing of it. For example,
//! `env_logger::init()` at the start of `main`, and `RUST_LOG=rdmabox=info` in the environment,
//! print it to the standard error. `warn` and `error` have the reasons for which a host ends a
//! session, and `info` has its begin and end. A panic of a service or a callback also goes to the
//! panic hook of the process. The default hook prints it.
//!
//! [`log`]: https://docs.rs/log
//!
//! # Signals
//!
//! The crate handles no signal, unless the program calls [`memory::survive`] (SIGBUS). A handler of
//! the program that returns interrupts no wait and no request of this crate. The default action of
//! SIGTERM and SIGINT ends the process, which is no orderly stop of a host. Its clients get
//! [`RequestError::Disconnected`], but [`Service::disconnected`] is not called. The file of a Unix
//! socket remains (the next host at the same path replaces it). For an orderly stop, wait for the
//! signal, then drop the [`HostHandle`]: [A host as a program](guide#a-host-as-a-program).
//!
//! # Safety
//!
//! Devices access memory that the compiler knows nothing of. Blocking requests lend the caller's
//! buffer until the device has released it; started requests own theirs. Lent [`Memory`] is never
//! exposed as a slice. The [`guide`] has the reasons. The three ways to give the crate memory
//! without these checks are unsafe: [`SendBuf`], [`RecvBuf`], and registering borrowed memory.

pub mod admission;
mod auth;
mod batch;
mod error;
pub mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(feature = "internals")]
pub mod internals;
mod mapping;
pub mod memory;
mod polling;
pub mod provider;
mod rpc;
mod runtime;
mod session;
pub mod stats;
mod sync;
pub mod tls;
pub mod verbs;

pub use memory::{Buffer, CallerMr, Memory, MemoryError, OwnedOp, PreMrThreshold, RecvBuf, SendBuf, Slice};
pub use runtime::trace;
pub use session::*;

#[doc = include_str!("../GUIDE.md")]
pub mod guide {
    /// Includes the text of an example, which a test builds and runs.
    macro_rules! example {
        ($($name:ident: $summary:literal,)*) => {
            $(
                #[doc = $summary]
                ///
                /// The file is
                #[doc = concat!("`examples/", stringify!($name), ".rs`:")]
                ///
                /// ```ignore
                #[doc = include_str!(concat!("../examples/", stringify!($name), ".rs"))]
                /// ```
                pub mod $name {}
            )*
        };
    }

    example! {
        kv_cache: "The example of a cache whose server runs no code for a get.",
        replicated_register: "The example of a register with a copy on each of two hosts.",
        work_queue: "The example of a queue of many producers and many workers.",
    }
}

// Tests the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
