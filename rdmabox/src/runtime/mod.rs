//! The one-sided request path: submit, plan, admit, post, complete.
//!
//! Threads push requests into the [merge queue](MergeQueue) of their direction. The thread that
//! becomes the combiner plans and admits the requests of all threads (`requests::submit`). It posts
//! them (`requests::post`) on a [lane], which is a queue pair with its posted requests. The caller
//! then waits for its [`Ticket`]: one waiting thread polls the completion queue for all waiters
//! ([`CqWaiters`]). Pollers (`requests::pollers`) poll for requests that no thread waits for. A
//! lone request on mapped memory skips all of this (`requests::mapped_io`). A failed queue pair is
//! replaced (`requests::qp_recovery`) while the other lanes carry on.
//!
//! [`Runtime`] is the state. `wait/` and `queue/` define the types of its fields and do not refer
//! to `Runtime`. `requests/` has its methods, one file for each job.
//!
//! # Concurrency
//! All methods may be called from any thread. `requests::submit` documents the lock order.

mod busy_poll_state;
mod lane;
mod lane_link;
mod peer_silence;
mod poller_state;
mod queue;
mod requests;
mod state;
pub mod trace;
mod wait;

pub use self::requests::Until;
pub(crate) use self::{
    lane_link::LaneLink,
    queue::{CombinerGuard, GroupOp, MergeQueue, Shift},
    requests::{Ended, Started, SubmittedList, WaitedBy, deadline_of},
    state::{Runtime, RuntimeInit},
    wait::{
        CqSource, CqUser, CqWaiter, CqWaiters, Interruption, Notice, ShortestTimeout, Ticket, WaitOutcome,
        Waitable, as_callback, in_callback, wait_many,
    },
};
