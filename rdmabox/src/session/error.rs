//! Errors of hosts and sessions.
//!
//! # Concurrency
//! Plain values.

use std::{io, time::Duration};

use super::{Address, RdmaError};
use crate::{
    memory::MemoryError,
    verbs::{VerbsError, WcStatus},
};

/// Error of connecting a session. Nothing is left behind; a retry is safe.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The operating system reported an error.
    #[error("{address}: {source}")]
    Io {
        /// Address of the host.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The host did not answer in time.
    #[error("{address}: no answer within {timeout:?}")]
    Timeout {
        /// Address of the host.
        address: Address,
        /// The timeout.
        timeout: Duration,
    },
    /// The host refused the client, or the options do not fit.
    #[error("{address}: {reason}")]
    Refused {
        /// Address of the host.
        address: Address,
        /// The reason.
        reason: String,
    },
}

/// Error of a request or a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The device reported an error for this request. Its queue pair is being replaced, and the
    /// session goes on.
    #[error("{0}")]
    Completion(WcStatus),
    /// Another request on the same queue pair failed. It is unknown whether this request took
    /// effect. A READ or WRITE can be repeated on the same session.
    #[error("flushed: another request on the same queue pair failed")]
    Flushed,
    /// The operation timeout expired. It is unknown whether the request took effect. The session
    /// goes on if the peer still answers. After a call the session is closed.
    #[error("no completion within {0:?}")]
    Timeout(Duration),
    /// The session is closed. It is unknown whether an outstanding request took effect.
    #[error("the session is closed: the peer is gone")]
    Disconnected,
    /// The service gave up the call without a reply. The service defines the effects of such a
    /// call; the session goes on.
    #[error("the service has not answered the call, and will not")]
    Unanswered,
    /// The call was cancelled before its reply arrived. It is unknown whether it took effect; the
    /// session goes on.
    #[error("the call was cancelled")]
    Cancelled,
    /// The request is invalid. It had no effect, and the session goes on.
    #[error("{0}")]
    Invalid(String),
}

/// Error of starting a host or exporting memory.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Listening on an address failed, so the host listens on none.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The device reported an error.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// No memory to export.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// There is no device for an RDMA address.
    #[error("cannot listen on {address}: {source}")]
    Rdma {
        /// The address.
        address: Address,
        /// The missing part.
        source: RdmaError,
    },
    /// Clients of several kinds would change the same words with atomics that are not atomic
    /// towards each other.
    #[error(
        "cannot listen on {address} beside RDMA: atomics of {device} are not atomic towards clients over TCP and shared memory, and \
         appends and sizes of files would be lost: listen on rdma: addresses only, or allow it (--allow-mixed-atomics) and mount \
         an export over one of them at a time"
    )]
    MixedAtomics {
        /// The address that is not for RDMA.
        address: Address,
        /// The RDMA device.
        device: String,
    },
    /// Starting a thread failed.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
