//! Records, which the threads of a mount pass to the thread that writes the file.
//!
//! # Concurrency
//! Plain values.

use std::time::Instant;

use rdmabox::{
    trace::{LocalMemory, TraceEvent, TransferKind},
    verbs::WcStatus,
};
use smallvec::SmallVec;

use super::details::Details;

/// Numbers of requests or work requests.
pub(super) type Numbers = SmallVec<[u64; 4]>;

/// An event of a thread.
#[derive(Debug)]
pub(super) struct Record {
    /// The thread's ID.
    pub(super) thread: u32,
    pub(super) at: Instant,
    pub(super) step: Step,
}

/// A step of a request. `began` is the begin of a step that ends at the time of its record.
#[derive(Debug)]
pub(super) enum Step {
    /// A request of the kernel has arrived.
    Arrived {
        request: u64,
        name: &'static str,
        details: Details,
    },
    /// The session thread has done its part.
    Handled {
        request: u64,
        name: &'static str,
        began: Instant,
    },
    /// The reply is at the kernel.
    Replied {
        request: u64,
        began: Instant,
    },
    /// The request has ended, in most cases with its reply.
    Ended {
        request: u64,
        name: &'static str,
    },
    Queued {
        request: u64,
        kind: TransferKind,
        bytes: u64,
    },
    Planned {
        work_request: u64,
        kind: TransferKind,
        bytes: u64,
        requests: Numbers,
        memory: LocalMemory,
        began: Instant,
    },
    Posted {
        work_requests: Numbers,
        lane: usize,
        accepted: bool,
        began: Instant,
    },
    Completed {
        work_request: u64,
        kind: TransferKind,
        requests: Numbers,
        status: WcStatus,
    },
    Delivered {
        work_request: u64,
        began: Instant,
    },
    Executed {
        request: u64,
        kind: TransferKind,
        bytes: u64,
        began: Instant,
    },
    Span {
        request: u64,
        category: &'static str,
        name: Box<str>,
        began: Instant,
    },
}

impl Step {
    /// Returns the step of an event, or `None` for an event of a later version of the runtime.
    pub(super) fn of(event: &TraceEvent<'_>) -> Option<Step> {
        Some(match *event {
            TraceEvent::Queued { request, kind, bytes, .. } => Step::Queued { request, kind, bytes },
            TraceEvent::Planned { work_request, kind, bytes, requests, memory, began, .. } => {
                Step::Planned { work_request, kind, bytes, requests: requests.into(), memory, began }
            }
            TraceEvent::Posted { work_requests, lane, accepted, began, .. } => {
                Step::Posted { work_requests: work_requests.into(), lane, accepted, began }
            }
            TraceEvent::Completed { work_request, kind, requests, status, .. } => {
                Step::Completed { work_request, kind, requests: requests.into(), status }
            }
            TraceEvent::Delivered { work_request, began, .. } => Step::Delivered { work_request, began },
            TraceEvent::Executed { request, kind, bytes, began, .. } => {
                Step::Executed { request, kind, bytes, began }
            }
            TraceEvent::Span { request, category, name, began, .. } => {
                Step::Span { request, category, name: name.into(), began }
            }
            _ => return None,
        })
    }
}
