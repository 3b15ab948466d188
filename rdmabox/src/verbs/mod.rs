//! The verbs model that every provider implements, in the terms of the InfiniBand specification.
//!
//! Each file defines one object. Children keep their parents alive: a queue pair owns its
//! protection domain and its completion queues, so the ownership graph fixes the teardown order.
//! Requests are posted in lists and completions are polled in batches, both without allocation.
//!
//! Every provider obeys these rules, which `tests/conformance/` checks:
//! - Completions of one queue pair arrive in posting order.
//! - A request that the responder refuses moves both queue pairs to [`QpState::Err`] and flushes
//!   the rest.
//! - A wrong key or a range outside the region never touches memory.
//! - A full queue is an error; a post never waits.
//!
//! [The verbs layer](crate::guide#the-verbs-layer) has an example with each of the objects. Only
//! this crate implements the traits, so a later version can add methods.

mod atomic_op;
mod cq;
mod device;
mod error;
mod mr;
mod qp;
mod qp_state;
mod remote_mr;
#[cfg(test)]
mod stub_qp;
mod wr;

/// Supertrait of the objects' traits, which other crates cannot name.
mod sealed {
    pub trait Sealed {}
}

pub(crate) use sealed::Sealed;

pub use atomic_op::{AtomicOp, AtomicOps};
pub(crate) use cq::own_cq;
pub use cq::{CompletionQueue, WcOpcode, WcStatus, WorkCompletion};
pub use device::{AtomicScope, Device, DeviceAttr, ProtectionDomain};
pub use error::{PostError, PostErrorReason, VerbsError};
pub use mr::{Access, MemoryRegion, MrHandle};
pub use qp::{Progress, QpCaps, QpInit, QueuePair, Rendezvous};
pub use qp_state::QpState;
pub(crate) use remote_mr::offsets;
pub use remote_mr::{RemoteMr, RemoteMrError};
#[cfg(test)]
pub(crate) use stub_qp::StubQp;
pub use wr::{DirectOp, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
