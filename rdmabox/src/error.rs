//! The error of a request, which the runtime, calls and sessions share.
//!
//! # Concurrency
//! A plain value.

use std::time::Duration;

use crate::verbs::{RemoteMrError, WcStatus};

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

impl From<RemoteMrError> for RequestError {
    fn from(refused: RemoteMrError) -> RequestError {
        RequestError::Invalid(refused.to_string())
    }
}
