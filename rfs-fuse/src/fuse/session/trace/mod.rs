//! Traces of single requests, in Chrome's trace format.
//!
//! [`Trace`] has the switch. While it is on, the session threads report requests of the kernel
//! ([`KernelRequest`]), and the client and the runtime report their steps. A recorder turns the
//! events into records and passes them to one thread, which writes the file. The queue to that
//! thread is bounded: records that find no room are counted and left out.
//!
//! # Concurrency
//! Any thread reports. The thread `trace` writes. A thread that reports never waits for the file.

mod details;
mod event;
mod file;
mod kernel_request;
mod record;
mod recorder;
#[allow(clippy::module_inception)] // The module of the type with this name.
mod trace;
mod writer;

pub(crate) use self::trace::{Trace, TraceError, parse_limit};
pub(super) use self::{details::Details, kernel_request::KernelRequest};
