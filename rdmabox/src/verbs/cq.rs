//! Completion queues.

use std::{any::Any, os::fd::BorrowedFd, sync::Arc, time::Duration};

use super::error::VerbsError;

/// Status of a completed work request. The discriminants are the codes of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32)]
#[non_exhaustive]
pub enum WcStatus {
    /// The request succeeded.
    #[error("success")]
    Success = 0,
    /// A message was longer than the receive posted for it.
    #[error("local length error: the message is longer than the posted receive")]
    LocLenErr = 1,
    /// The queue pair could not execute the request.
    #[error("local queue pair operation error")]
    LocQpOpErr = 2,
    /// A local key, range or access right was wrong.
    #[error("local protection error: a local key, range or access right is wrong")]
    LocProtErr = 4,
    /// The queue pair was in, or moved to, the error state before the request ran.
    #[error("flushed: the queue pair is in the error state")]
    WrFlushErr = 5,
    /// The responder found the request malformed (for example an unaligned atomic).
    #[error("remote invalid request")]
    RemInvReqErr = 9,
    /// The responder refused the key, the range or the access.
    #[error("remote access error: the peer refused the key, the range or the access")]
    RemAccessErr = 10,
    /// The responder could not complete the request.
    #[error("remote operation error")]
    RemOpErr = 11,
    /// The peer stopped answering.
    #[error("transport retries exceeded: the peer is gone")]
    RetryExcErr = 12,
    /// The peer posted no receive in time.
    #[error("receiver-not-ready retries exceeded: the peer posted no receive")]
    RnrRetryExcErr = 13,
    /// Any other failure.
    #[error("general error")]
    GeneralErr = 21,
}

impl WcStatus {
    /// Returns the status for a numeric code from a device or a peer. Unknown codes map to
    /// [`WcStatus::GeneralErr`].
    pub fn from_code(code: u32) -> WcStatus {
        use WcStatus::*;
        [
            Success,
            LocLenErr,
            LocQpOpErr,
            LocProtErr,
            WrFlushErr,
            RemInvReqErr,
            RemAccessErr,
            RemOpErr,
            RetryExcErr,
            RnrRetryExcErr,
        ]
        .into_iter()
        .find(|s| *s as u32 == code)
        .unwrap_or(GeneralErr)
    }

    /// Returns true if this side or the peer refused the request for its own sake: for a key, a
    /// range, a right or a length. The same request fails again, and others may succeed.
    pub(crate) fn is_refusal(self) -> bool {
        use WcStatus::*;
        match self {
            LocLenErr | LocQpOpErr | LocProtErr | RemInvReqErr | RemAccessErr | RemOpErr => true,
            Success | WrFlushErr | RetryExcErr | RnrRetryExcErr | GeneralErr => false,
        }
    }

    /// Returns the numeric code of `enum ibv_wc_status`.
    pub fn code(self) -> u32 {
        self as u32
    }
}

/// Kind of a completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A SEND.
    Send,
    /// An RDMA WRITE, with or without immediate data.
    RdmaWrite,
    /// An RDMA READ.
    RdmaRead,
    /// A compare-and-swap.
    CompSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// Another atomic ([`AtomicOp`](super::AtomicOp)).
    FetchOp,
    /// A receive, filled by a SEND.
    Recv,
    /// A receive, consumed by a WRITE with immediate data.
    RecvRdmaWithImm,
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkCompletion {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Status of the request. On failure only `wr_id` and `qp_num` are meaningful besides it.
    pub status: WcStatus,
    /// Kind of the work request.
    pub opcode: WcOpcode,
    /// Bytes received (receives) or transferred (READ, atomics).
    pub byte_len: u32,
    /// Immediate data, on a receive whose message carried some.
    pub imm: Option<u32>,
    /// Number of the queue pair that executed the request.
    pub qp_num: u32,
}

impl WorkCompletion {
    /// Placeholder that fills a batch array before a poll.
    pub const EMPTY: WorkCompletion = WorkCompletion {
        wr_id: 0,
        status: WcStatus::Success,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm: None,
        qp_num: 0,
    };
}

/// A completion queue with its completion channel.
///
/// To sleep without losing a completion, a thread takes three steps in this order:
/// [`arm`](Self::arm), poll once more, [`wait`](Self::wait). A completion that arrives after
/// `arm` makes the next `wait` return.
pub trait CompletionQueue: super::Sealed + std::any::Any + Send + Sync + std::fmt::Debug {
    /// Takes up to `out.len()` completions, oldest first, and returns their number. Never blocks.
    ///
    /// # Errors
    /// [`VerbsError::CqOverrun`] if completions were lost because the queue was full. The error is
    /// final; it is reported after the remaining completions have been taken.
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError>;

    /// Requests an event on the next completion (`ibv_req_notify_cq`). One call yields one event.
    fn arm(&self) -> Result<(), VerbsError>;

    /// Blocks until the event of [`arm`](Self::arm), a [`wake`](Self::wake), or the timeout.
    /// Returns true for an event or a wake, false for a timeout. The call may return early, so the
    /// caller polls in any case. Only one thread at a time may wait.
    fn wait(&self, timeout: Option<Duration>) -> Result<bool, VerbsError>;

    /// Makes the current or the next [`wait`](Self::wait) return. Any thread may call it.
    fn wake(&self);

    /// Returns the descriptors that become readable when [`wait`](Self::wait) has to be called
    /// without blocking. The reasons are the event of [`arm`](Self::arm), a [`wake`](Self::wake),
    /// or work for the waiting thread. A thread can so wait for several queues. Returns none if the
    /// queue has no such descriptors.
    fn event_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    /// Returns the number of completions that the queue can hold.
    fn depth(&self) -> usize;
}

/// Returns a completion queue as the type of the provider that made it.
///
/// # Errors
/// [`VerbsError::Foreign`] if another provider made it.
pub(crate) fn own_cq<C: CompletionQueue>(cq: Arc<dyn CompletionQueue>) -> Result<Arc<C>, VerbsError> {
    let any: Arc<dyn Any + Send + Sync> = cq;
    any.downcast().map_err(|_| VerbsError::Foreign("the completion queue"))
}
