//! Errors of the verbs layer. Those of one work request are in [`WcStatus`](super::WcStatus).

use super::{Access, QpState};

/// A verbs call that could not be carried out. Nothing was changed unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// The call that failed.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
    /// More than the device supports was asked for.
    #[error("{what} of {asked} exceeds the device's limit of {limit}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// What there is.
        limit: u64,
    },
    /// The queue pair is in the wrong state for this call.
    #[error("queue pair is in state {is:?}, this call needs {needs:?}")]
    State {
        /// The state now.
        is: QpState,
        /// The state that the call needs.
        needs: QpState,
    },
    /// The range does not lie inside the memory.
    #[error("range {offset}+{length} lies outside the memory of {size} bytes")]
    Range {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Bytes there are.
        size: u64,
    },
    /// Remote rights on memory that cannot be shared with the peers of this provider.
    #[error("memory cannot be registered with {access:?}: {why}")]
    NotShareable {
        /// The rights asked for.
        access: Access,
        /// What stands in the way.
        why: &'static str,
    },
    /// An object of another provider or device was passed.
    #[error("{0} belongs to another device")]
    Foreign(&'static str),
    /// The other side of a rendezvous said something that makes no sense.
    #[error("peer speaks no known protocol: {0}")]
    Protocol(String),
    /// The completion queue was full when a completion arrived; some are lost for good.
    #[error("completion queue overrun: it was too small for the work posted, completions are lost")]
    CqOverrun,
    /// The peer closed the connection or died.
    #[error("the peer is gone")]
    PeerGone,
    /// This side's device has no way to the peer's.
    #[error("no path to the peer: {0}")]
    NoPath(String),
}

impl VerbsError {
    /// Wraps the current `errno`.
    pub fn last_os(what: &'static str) -> VerbsError {
        VerbsError::Os { what, source: std::io::Error::last_os_error() }
    }

    /// Wraps an I/O error.
    pub fn os(what: &'static str, source: std::io::Error) -> VerbsError {
        VerbsError::Os { what, source }
    }
}

/// Posting a list stopped before its end: the first `posted` requests are on the queue and will complete, the
/// rest are not and will not.
#[derive(Debug, thiserror::Error)]
#[error("work request {posted} of the list was refused: {reason}")]
pub struct PostError {
    /// How many were posted; also the index of the one that was refused.
    pub posted: usize,
    /// Why.
    pub reason: PostErrorReason,
}

/// Why a work request was refused at the post.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PostErrorReason {
    /// The work queue is full. Safe to retry after a completion has been polled.
    #[error("work queue is full ({depth} requests)")]
    QueueFull {
        /// Its depth.
        depth: u32,
    },
    /// The queue pair is in a state that takes no such requests.
    #[error("queue pair is in state {0:?}")]
    State(QpState),
    /// More elements than `max_sge`.
    #[error("{asked} scatter/gather elements, the limit is {limit}")]
    TooManySges {
        /// Elements in the request.
        asked: usize,
        /// The queue pair's limit.
        limit: u32,
    },
    /// More inline bytes than `max_inline_data`, or inline on an operation that cannot have it.
    #[error("{asked} inline bytes, the limit here is {limit}")]
    Inline {
        /// Bytes asked for.
        asked: u64,
        /// The limit for this operation.
        limit: u32,
    },
    /// Longer than `max_msg_sz`.
    #[error("message of {asked} bytes, the limit is {limit}")]
    TooLong {
        /// Bytes asked for.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// An atomic needs exactly one element of 8 bytes.
    #[error("an atomic needs exactly one 8-byte element")]
    AtomicShape,
    /// The device or its driver refused for a reason of its own.
    #[error("the device refused it: {}", std::io::Error::from_raw_os_error(*.0))]
    Device(i32),
}
