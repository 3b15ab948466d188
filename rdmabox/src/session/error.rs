//! Errors of sessions.

use std::{io, time::Duration};

use super::{Address, RdmaError};
use crate::{
    memory::MemoryError,
    verbs::{VerbsError, WcStatus},
};

/// Why a session could not be made. Nothing is left behind; a retry is safe.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The operating system refused.
    #[error("{address}: {source}")]
    Io {
        /// Where to.
        address: Address,
        /// Its error.
        source: io::Error,
    },
    /// Nobody answered in time.
    #[error("{address}: no answer within {timeout:?}")]
    Timeout {
        /// Where to.
        address: Address,
        /// The time there was.
        timeout: Duration,
    },
    /// The other side, or the options, say no.
    #[error("{address}: {reason}")]
    Refused {
        /// Where to.
        address: Address,
        /// Why.
        reason: String,
    },
}

/// Why a request or a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The device reported an error for this request. Its queue pair is being replaced; the session goes on.
    #[error("{0}")]
    Completion(WcStatus),
    /// Another request on the same queue pair failed. Whether this one took effect is unknown: a READ or WRITE can be
    /// repeated, on the same session.
    #[error("flushed: another request on the same queue pair failed")]
    Flushed,
    /// It took too long. Whether the request took effect is unknown. The session goes on if the peer still answers;
    /// after a call it is closed.
    #[error("no completion within {0:?}")]
    Timeout(Duration),
    /// The session is closed. Whether a request that was under way took effect is unknown.
    #[error("the session is closed: the peer is gone")]
    Disconnected,
    /// The service has given up the call without a reply. What it did for it is the service's to say; the session goes on.
    #[error("the service has not answered the call, and will not")]
    Unanswered,
    /// The call was cancelled before its reply was there. Whether it took effect is unknown; the session goes on.
    #[error("the call was cancelled")]
    Cancelled,
    /// The request cannot be made like this; it had no effect, and the session goes on.
    #[error("{0}")]
    Invalid(String),
}

/// Why a host could not be started, or memory not be exported.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// An address cannot be listened on; none is.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: Address,
        /// The error.
        source: io::Error,
    },
    /// The device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There is no memory to lend.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// An address is for RDMA, and there is no device for it.
    #[error("cannot listen on {address}: {source}")]
    Rdma {
        /// Which.
        address: Address,
        /// What is missing.
        source: RdmaError,
    },
    /// Clients of several kinds would change the same words, with atomics that do not know of each other.
    #[error(
        "cannot listen on {address} beside RDMA: atomics of {device} are not atomic towards clients over TCP and shared memory, and \
         appends and sizes of files would be lost: listen on rdma: addresses only, or allow it (--allow-mixed-atomics) and mount \
         an export over one of them at a time"
    )]
    MixedAtomics {
        /// Not for RDMA.
        address: Address,
        /// The RDMA device.
        device: String,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
