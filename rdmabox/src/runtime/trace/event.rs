//! The steps of a request.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, time::Instant};

use crate::verbs::WcStatus;

/// The kind of a request or of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransferKind {
    /// A READ.
    Read,
    /// A WRITE.
    Write,
    /// A compare-and-swap, or another atomic.
    Atomic,
}

/// The local memory of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LocalMemory {
    /// The bytes travel inside the work request.
    Inline,
    /// The bytes are copied through a preMR.
    Copied,
    /// The caller's memory is registered for the work request (dynMR).
    Registered,
    /// The memory was registered before: a buffer of the session, or one that the program has
    /// registered.
    Lasting,
}

macro_rules! names {
    ($type:ident: $($variant:ident $name:literal,)*) => {
        impl $type {
            /// Returns the name, in lower case.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

names! { TransferKind: Read "read", Write "write", Atomic "atomic", }
names! { LocalMemory: Inline "inline", Copied "copied", Registered "registered", Lasting "lasting", }

/// A step of a request.
///
/// `request` and `requests` are numbers of the program's requests ([`RequestScope`]), 0 for none.
/// A work request has its own number, which is unique for a [`Tracer`]. `began` is the time at
/// which a step began that has just ended.
///
/// [`RequestScope`]: super::RequestScope
/// [`Tracer`]: super::Tracer
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TraceEvent<'a> {
    /// A request has entered the merge queue.
    #[non_exhaustive]
    Queued {
        /// The program's request.
        request: u64,
        /// Kind of the request.
        kind: TransferKind,
        /// Its length.
        bytes: u64,
    },
    /// Requests have left the merge queue, and have become one work request. Its memory is ready.
    #[non_exhaustive]
    Planned {
        /// Number of the work request.
        work_request: u64,
        /// Kind of the work request.
        kind: TransferKind,
        /// Its length.
        bytes: u64,
        /// The program's requests that it carries, in the order of their addresses. A request with
        /// several merged parts stands there once for each part.
        requests: &'a [u64],
        /// Local memory of the work request.
        memory: LocalMemory,
        /// Begin of copying or registering.
        began: Instant,
    },
    /// A chain of work requests was posted with one doorbell.
    #[non_exhaustive]
    Posted {
        /// Numbers of the work requests, in order. Zero for those that were planned before the
        /// tracer was switched on.
        work_requests: &'a [u64],
        /// The queue pair.
        lane: usize,
        /// True if the queue pair has accepted all of them.
        accepted: bool,
        /// Begin of the post.
        began: Instant,
    },
    /// A work request has completed. Its callers do not know yet.
    #[non_exhaustive]
    Completed {
        /// Number of the work request.
        work_request: u64,
        /// Kind of the work request.
        kind: TransferKind,
        /// The program's requests that it carried, as in [`Planned`](TraceEvent::Planned).
        requests: &'a [u64],
        /// The outcome.
        status: WcStatus,
    },
    /// The bytes of a completed work request are in place, and its callers are notified. Callbacks
    /// have run.
    #[non_exhaustive]
    Delivered {
        /// Number of the work request.
        work_request: u64,
        /// Begin of the delivery.
        began: Instant,
    },
    /// The caller has executed a request on mapped memory. There is no work request.
    #[non_exhaustive]
    Executed {
        /// The program's request.
        request: u64,
        /// Kind of the request.
        kind: TransferKind,
        /// Its length.
        bytes: u64,
        /// Begin of the copy.
        began: Instant,
    },
    /// A part of the program has ended ([`span`](super::span())).
    #[non_exhaustive]
    Span {
        /// The program's request.
        request: u64,
        /// Category of the part.
        category: &'static str,
        /// Name of the part.
        name: &'a str,
        /// Begin of the part.
        began: Instant,
    },
}
