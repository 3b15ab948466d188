//! Errors of verbs calls. Errors of a single work request are [`WcStatus`](super::WcStatus)
//! values.

use super::{atomic_op::AtomicOp, mr::Access, qp_state::QpState};

/// Failure of a verbs call. The call changed nothing unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The operating system refused a call.
    #[error("{what}: {source}")]
    Os {
        /// Name of the failed call.
        what: &'static str,
        /// Error that the call returned.
        source: std::io::Error,
    },
    /// The caller requested more than the device supports.
    #[error("{what} of {asked} exceeds the device's limit of {limit}")]
    Limit {
        /// Name of the exceeded limit.
        what: &'static str,
        /// Requested amount.
        asked: u64,
        /// Limit of the device.
        limit: u64,
    },
    /// The queue pair is in the wrong state for this call.
    #[error("queue pair is in state {is:?}, this call needs {needs:?}")]
    State {
        /// Current state.
        is: QpState,
        /// State that the call needs.
        needs: QpState,
    },
    /// The range does not lie inside the memory.
    #[error("range {offset}+{length} lies outside the memory of {size} bytes")]
    Range {
        /// First byte requested.
        offset: u64,
        /// Bytes requested.
        length: u64,
        /// Size of the memory in bytes.
        size: u64,
    },
    /// Remote rights were requested for memory that this provider cannot share with peers.
    #[error("memory cannot be registered with {access:?}: {why}")]
    NotShareable {
        /// Rights requested.
        access: Access,
        /// Reason why the memory cannot be shared.
        why: &'static str,
    },
    /// The caller passed an object of another provider or device.
    #[error("{0} belongs to another device")]
    Foreign(&'static str),
    /// The peer violated the rendezvous protocol.
    #[error("peer speaks no known protocol: {0}")]
    Protocol(String),
    /// A completion arrived while the completion queue was full, and was lost.
    #[error("completion queue overrun: it was too small for the work posted, completions are lost")]
    CqOverrun,
    /// The peer closed the connection or died.
    #[error("the peer is gone")]
    PeerGone,
    /// The local device has no path to the peer's device.
    #[error("no path to the peer: {0}")]
    NoPath(String),
}

impl VerbsError {
    /// Wraps the current `errno` of the calling thread.
    pub fn last_os(what: &'static str) -> VerbsError {
        VerbsError::Os { what, source: std::io::Error::last_os_error() }
    }

    /// Wraps an I/O error.
    pub fn os(what: &'static str, source: std::io::Error) -> VerbsError {
        VerbsError::Os { what, source }
    }
}

/// Failure in the middle of a posted list. The first `posted` requests are on the queue and will
/// complete. The remaining requests were not posted.
#[derive(Debug, thiserror::Error)]
#[error("work request {posted} of the list was refused: {reason}")]
#[non_exhaustive]
pub struct PostError {
    /// Number of requests posted, which is also the index of the refused request.
    pub posted: usize,
    /// Reason for the refusal.
    pub reason: PostErrorReason,
}

/// Reason why a post refused a work request.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostErrorReason {
    /// The work queue is full. The caller can retry after it has polled a completion.
    #[error("work queue is full ({depth} requests)")]
    QueueFull {
        /// Depth of the queue.
        depth: u32,
    },
    /// The queue pair is in a state that does not accept the request.
    #[error("queue pair is in state {0:?}")]
    State(QpState),
    /// The request has more elements than `max_sge`.
    #[error("{asked} scatter/gather elements, the limit is {limit}")]
    TooManySges {
        /// Elements in the request.
        asked: usize,
        /// The queue pair's limit.
        limit: u32,
    },
    /// The request has more than `max_inline_data` inline bytes, or its operation cannot be inline.
    #[error("{asked} inline bytes, the limit here is {limit}")]
    Inline {
        /// Bytes asked for.
        asked: u64,
        /// The limit for this operation.
        limit: u32,
    },
    /// The message is longer than `max_msg_sz`.
    #[error("message of {asked} bytes, the limit is {limit}")]
    TooLong {
        /// Bytes asked for.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// An atomic does not have exactly one element of 8 bytes.
    #[error("an atomic needs exactly one 8-byte element")]
    AtomicShape,
    /// The device does not have the atomic ([`DeviceAttr::atomic_ops`](super::DeviceAttr)).
    #[error("the device has no atomic {}", .0.name())]
    Unsupported(AtomicOp),
    /// The device or its driver refused the request with this `errno`.
    #[error("the device refused it: {}", std::io::Error::from_raw_os_error(*.0))]
    Device(i32),
}
