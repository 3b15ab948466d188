//! The verbs model: what every provider implements, in the terms of the InfiniBand specification.
//!
//! One object a file. Children keep their parents alive (a queue pair owns its protection domain and its
//! completion queues), so that the order of teardown follows from the structure. Requests go in by the list
//! and completions come out by the batch; neither direction allocates.
//!
//! Rules that hold on every provider, and that `tests/conformance/` checks on each:
//! - completions of one queue pair come in the order of posting;
//! - a request that the responder refuses moves both queue pairs to [`QpState::Err`] and flushes the rest;
//! - a wrong key or a range outside the region never touches memory;
//! - a full queue is an error, never a wait.

mod cq;
mod device;
mod error;
mod mr;
mod qp;
mod wr;

pub use cq::{CompletionQueue, WcOpcode, WcStatus, WorkCompletion};
pub use device::{AtomicScope, Device, DeviceAttr, ProtectionDomain};
pub use error::{PostError, PostErrorReason, VerbsError};
pub use mr::{Access, MemoryRegion, MrHandle};
pub use qp::{Progress, QpCaps, QpInit, QpState, QueuePair, Rendezvous};
pub use wr::{DirectOp, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
