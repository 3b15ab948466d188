//! Traces of single requests: the fate of each on its way through the runtime.
//!
//! A program gives a session a [`Tracer`] with a [`TraceSink`] of its own
//! ([`SessionOptions::trace`](crate::SessionOptions::trace)), and switches it on and off. The sink
//! then gets a [`TraceEvent`] for each step of each request. A [`RequestScope`] connects the steps
//! with a request of the program. A tracer that is off costs one load for each request.
//!
//! # Concurrency
//! Any thread. No locks; a sink brings its own.

mod event;
mod scope;
mod sink;
mod span;
mod tracer;

pub(crate) use self::scope::current_request;
pub use self::{
    event::{LocalMemory, TraceEvent, TransferKind},
    scope::{RequestScope, TracedRequest, current},
    sink::TraceSink,
    span::{Span, span},
    tracer::Tracer,
};
