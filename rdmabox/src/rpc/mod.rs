//! Remote procedure calls over a queue pair of their own (SEND and RECV).
//!
//! A call takes one of [`message::CALL_SLOTS`] slots. Request and reply carry the slot in an 8-byte
//! header. Both sides post one receive per slot. A service may defer its reply. An ordinary call
//! then keeps its slot. A waiting call frees its slot, and gets its reply under a number on a
//! second queue pair ([`DeferredReplies`], [`WaitingCalls`]). A started call has no waiting thread
//! (`client::StartedCalls`). Calls may also go through memory that the client writes and reads
//! ([`fetch`]).
//!
//! # Concurrency
//! Each submodule documents its own threads and locks.

mod client;
mod fetch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod message;
mod server;

#[cfg(feature = "fuzzing")]
pub(crate) use self::fetch::MEMORY as CALL_MEMORY;
pub(crate) use self::{
    client::{CallState, RpcClient, WaitingCalls},
    fetch::{FetchClient, FetchSize, HostSlots, OneSided, PollTime, ReplyMemory, ReplyWriter, WRITER_DEPTH},
    message::{DEFERRED_DEPTH, QUEUE_DEPTH},
    server::{DeferredReplies, Handler, Reason, RpcServer},
};
pub use self::{
    client::{Cancel, StartedReply},
    message::MAX_CALL,
    server::{Answer, AnswerCounts, CallError, PendingReply, Reply},
};
