//! The one-sided request path: submit, plan, admit, post, complete.
//!
//! Threads push requests into the [merge queue](MergeQueue) of their direction. The thread that
//! becomes the combiner plans and admits the requests of all threads (`path::submit`). It posts
//! them (`path::post`) on a [lane], which is a queue pair with its posted requests. The caller then
//! waits for its [`Ticket`]: one waiting thread polls the completion queue for all waiters
//! ([`CqWaiters`]). Pollers (`path::pollers`) poll for requests that no thread waits for. A lone
//! request on mapped memory skips all of this (`path::mapped_io`). A failed queue pair is replaced
//! (`path::qp_recovery`) while the other lanes carry on.
//!
//! [`Runtime`] is the state. `wait/` and `queue/` define the types of its fields and do not refer
//! to `Runtime`. `path/` has its methods, one file for each job.
//!
//! # Concurrency
//! All methods may be called from any thread. `path::submit` documents the lock order.

mod lane;
mod link;
mod path;
mod poller_state;
mod queue;
mod serve_state;
mod silence;
mod state;
pub mod trace;
mod wait;

pub use self::path::Until;
pub(crate) use self::{
    link::Link,
    path::{Ended, Started, SubmittedList, WaitedBy, deadline_of},
    queue::{CombinerGuard, GroupOp, MergeQueue, Shift},
    state::{Runtime, RuntimeInit},
    wait::{
        CqSource, CqUser, CqWaiter, CqWaiters, Interruption, Notice, ShortestTimeout, Ticket, WaitOutcome,
        Waitable, as_callback, in_callback, wait_many,
    },
};
