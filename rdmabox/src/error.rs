//! The errors of requests, which the runtime, calls and sessions share.
//!
//! # Concurrency
//! Plain values.

use std::{error::Error, fmt, time::Duration};

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

/// Error of a started request, with the buffer of the request.
///
/// It displays as its [`error`](Self::error). The `?` operator converts it to a
/// [`RequestError`], and drops the buffer.
///
/// ```no_run
/// # fn main() -> Result<(), rdmabox::RequestError> {
/// # let (session, remote): (std::sync::Arc<rdmabox::Session>, rdmabox::RemoteAddr) = todo!();
/// let mut buffer = vec![0; 4096];
/// // A READ has no effect at the host, so it can be repeated with the buffer that comes back.
/// buffer = match session.start_read(remote, buffer).wait() {
///     Err(rdmabox::Failed { buffer: Some(buffer), .. }) => session.start_read(remote, buffer).wait()?,
///     other => other?,
/// };
/// # Ok(())
/// # }
/// ```
#[derive(PartialEq, Eq)]
pub struct Failed<B> {
    /// The reason.
    pub error: RequestError,
    /// The buffer of the request. The content of the buffer of a failed READ is undefined.
    ///
    /// `None` if the transfer goes on without an owner, because a callback
    /// [waited](crate::Transfer::wait) for it. The buffer is dropped when the transfer is done.
    pub buffer: Option<B>,
}

impl<B> Failed<B> {
    pub(crate) fn new(error: RequestError, buffer: B) -> Failed<B> {
        Failed { error, buffer: Some(buffer) }
    }
}

// Buffers are long, and most types of buffers have no use for their bytes in a log.
impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_buffer = self.buffer.is_some();
        f.debug_struct("Failed").field("error", &self.error).field("has_buffer", &has_buffer).finish()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> Error for Failed<B> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl<B> From<Failed<B>> for RequestError {
    fn from(failed: Failed<B>) -> RequestError {
        failed.error
    }
}
