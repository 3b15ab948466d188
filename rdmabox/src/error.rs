//! The errors of requests, which the runtime, calls and sessions share.
//!
//! # Concurrency
//! Plain values.

use std::{error::Error, fmt, time::Duration};

use crate::verbs::{AtomicOp, RemoteMrError, WcStatus};

/// Error of a request or a call.
///
/// [`is_retryable`](Self::is_retryable) tells whether a repetition can succeed, and
/// [`outcome_unknown`](Self::outcome_unknown) whether the request may have taken effect. A READ or
/// WRITE can be repeated if it is retryable. An atomic or a call can be repeated if in addition its
/// outcome is known, or if a second effect does no harm.
///
/// | error | `is_retryable` | `outcome_unknown` |
/// |-|-|-|
/// | [`Flushed`](Self::Flushed), [`Timeout`](Self::Timeout) | yes | yes |
/// | `Completion` of `WrFlushErr`, `RetryExcErr`, `RnrRetryExcErr` | yes | yes |
/// | `Completion` of `RemAccessErr` | no | no |
/// | `Completion` of any other [`WcStatus`] | no | yes |
/// | [`Disconnected`](Self::Disconnected), [`Unanswered`](Self::Unanswered), [`Cancelled`](Self::Cancelled) | no | yes |
/// | [`Rejected`](Self::Rejected), [`Unsupported`](Self::Unsupported), [`ListTooLong`](Self::ListTooLong), [`Invalid`](Self::Invalid) | no | no |
///
/// A repetition after `Flushed` or `Timeout` may have to wait until a queue pair is replaced. A
/// write or an atomic waits for that if the failed request may still change the same bytes.
///
/// # Repeating a WRITE that publishes
/// A repeated WRITE stores the bytes again. That is safe if no other party changed the range since
/// the first attempt. It is not safe for a WRITE that publishes: a worker that saw a mark may have
/// taken the job and changed the mark. The repetition would publish the job twice. Publish such
/// records in this way:
///
/// 1. Claim a place by a compare-and-swap that stores a unique value. No other client changes a
///    claim.
/// 2. Write the record, then publish it by a compare-and-swap from the claim to the new mark, in
///    one list ([`Session::execute`](crate::Session::execute)).
/// 3. After an error with an unknown outcome, add zero to the word with `fetch_add(word, 0)`. This
///    is a fence: it waits until the failed list can no longer take effect, in any of its steps,
///    because one list is on one queue pair.
/// 4. If the word still holds the claim, nothing was published: repeat the list. Otherwise it was.
///
/// The fence needs a step of the failed list that changes the word. It takes up to one more
/// [`operation_timeout`](crate::SessionOptions::operation_timeout).
///
/// | the fence | state of the failed request | next |
/// |-|-|-|
/// | succeeds | the failed request has ended. The word tells whether it took effect | as in step 4 |
/// | fails, and is [retryable](Self::is_retryable) | nothing | repeat the fence. It succeeds, or the session ends |
/// | fails otherwise | nothing, also if the error of the fence has a known outcome | below |
///
/// No fence follows after [`Disconnected`](Self::Disconnected), because a fence is a request of the
/// same session. After it the program needs the host:
///
/// - The host frees the claims of a lost client, in
///   [`Service::disconnected`](crate::Service::disconnected). Only then no request of that client
///   takes effect any more. Without a lease ([`Fencing`](crate::Fencing)), a client that is stopped
///   or cut off keeps its claims for ever.
/// - A client that reconnects asks the host whether its publication took effect. The host can
///   answer when `disconnected` has run for the old session.
///
/// The [guide](crate::guide#claims-and-lost-clients) has the whole program.
///
/// Tickets that parties share have no such fence: a fetch-and-add with an unknown outcome may leave
/// a ticket that no party uses. Use a compare-and-swap to a unique value there.
///
/// # A flushed atomic
/// A fetch-and-add that failed with [`Flushed`](Self::Flushed) or [`Timeout`](Self::Timeout) may
/// have been executed. A program can find that out if it knows the previous value of the word. So
/// give each session a word of its own, and let readers add the words up. A later atomic on the
/// same word waits until the failed one can no longer take effect. A READ does not wait for that,
/// so the program adds zero instead of reading:
///
/// ```
/// use rdmabox::{MemoryServer, RemoteAddr, RequestError, Session, SessionOptions};
///
/// /// Adds `amount`, which is not zero, to `word` once. Only this session changes `word`, which
/// /// holds `before`.
/// ///
/// /// If this returns an error, it is unknown whether it added: do not call it again with the
/// /// same `before`. The error may be that of the fence, so its `outcome_unknown` is no help.
/// fn add_once(
///     session: &Session,
///     word: RemoteAddr,
///     before: u64,
///     amount: u64,
/// ) -> Result<(), RequestError> {
///     loop {
///         match session.fetch_add(word, amount) {
///             Err(e) if e.is_retryable() => {}
///             known => return known.map(drop),
///         }
///         // The fence. Adding zero can be repeated in any case. The loop ends: if the host
///         // does not answer, the session ends, and the error is not retryable.
///         let now = loop {
///             match session.fetch_add(word, 0) {
///                 Err(e) if e.is_retryable() => {}
///                 other => break other?,
///             }
///         };
///         if now != before {
///             return Ok(());
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 4096)?;
/// let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
/// let word = MemoryServer::locate(&session)?.base();
/// add_once(&session, word, 0, 5)?;
/// assert_eq!(session.fetch_add(word, 0), Ok(5));
/// // The host is gone: the loop ends with the session.
/// drop(host);
/// assert_eq!(add_once(&session, word, 5, 5), Err(RequestError::Disconnected));
/// # Ok(())
/// # }
/// ```
///
/// After such an error, read the word in a new session, as soon as the host has called
/// [`disconnected`](crate::Service::disconnected) for the old session.
///
/// A compare-and-swap needs no word of its own if each new value is unique. For example, the value
/// contains a number of the session and a counter of the session. A new value needs a new count,
/// and a repetition of an attempt keeps the count. The client has no number of its session: the
/// service hands it [`Peer::id`](crate::Peer::id) in a reply. A repetition that finds the new value
/// in the word then shows that the first attempt took effect. Other sessions must not replace the
/// value before its writer has seen it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The device reported an error for this request. Its queue pair is being replaced, and the
    /// session goes on. [`RemAccessErr`](WcStatus::RemAccessErr) means that the host refused the
    /// request, which had no effect. The error of a list names no step.
    ///
    /// The error is due to this request alone. If the host or this side's device refuses a merged
    /// work request, each of its requests is repeated alone and gets its own outcome. A WRITE
    /// stores its bytes again then. If this side's device refused the merged work request, the
    /// first attempt may already have stored the bytes. So a WRITE to which other parties react
    /// belongs in a list ([why](Self#repeating-a-write-that-publishes)). Lists and atomics are
    /// never merged, and never repeated.
    #[error("{0}")]
    Completion(WcStatus),
    /// Another request on the same queue pair failed. It is unknown whether this request took
    /// effect. A READ or WRITE can be repeated on the same session.
    #[error("flushed: another request on the same queue pair failed")]
    Flushed,
    /// The operation timeout expired. It is unknown whether the request took effect, and it may
    /// still take effect. After a call the session is closed.
    ///
    /// After another request its queue pair is replaced, and the session goes on if the peer still
    /// answers. Otherwise the session ends after
    /// [`connect_timeout`](crate::SessionOptions::connect_timeout), at the latest. So a `Timeout`
    /// can be [retryable](Self::is_retryable) although
    /// [`is_connected`](crate::Session::is_connected) is false already.
    #[error("no completion within {0:?}: it is unknown whether the request took effect")]
    Timeout(Duration),
    /// The session has ended. It is unknown whether an outstanding request took effect. A request
    /// made afterwards had no effect, but the error does not tell which of both it is: treat the
    /// outcome as unknown. Connect a new session
    /// ([`Session::reconnect`](crate::Session::reconnect)).
    ///
    /// The error has no cause, because this side often cannot know it. The log of the host names
    /// it for the causes of the host ([Log](crate#log)). The causes are:
    ///
    /// - this side closed the session ([`Session::close`](crate::Session::close));
    /// - a call had no reply within its timeout;
    /// - a queue pair could not be replaced within
    ///   [`connect_timeout`](crate::SessionOptions::connect_timeout);
    /// - the host stopped: its [`HostHandle`](crate::HostHandle) was dropped;
    /// - the host ended the session: by a [`SessionTerminator`](crate::SessionTerminator), because
    ///   its lease expired ([`Fencing`](crate::Fencing)), or because the client did not release
    ///   withdrawn memory;
    /// - the service panicked, answered with
    ///   [`CallError::EndSession`](crate::CallError::EndSession), or with more than 64 KiB;
    /// - the process of the host ended: it was killed, or it lost a page of its memory
    ///   ([`memory::survive`](crate::memory::survive));
    /// - the network is down, or this side sent bytes that the host takes for a violation of the
    ///   protocol.
    #[error("the session has ended: this side or the host ended it, or the peer is gone; connect again")]
    Disconnected,
    /// The service gave up the call without a reply. The service defines the effects of such a
    /// call; the session goes on.
    #[error("the service has not answered the call, and will not")]
    Unanswered,
    /// The service refused the call ([`CallError::Rejected`](crate::CallError::Rejected)), and
    /// gives this reason. The service defines the effects of such a call; the session goes on.
    #[error("the service refused the call: {reason}")]
    Rejected {
        /// The reason, which the host sends. Control characters are escaped.
        reason: String,
    },
    /// The call was cancelled before its reply arrived. It is unknown whether it took effect; the
    /// session goes on.
    #[error("the call was cancelled")]
    Cancelled,
    /// The session's provider does not have the atomic
    /// ([`Session::supports`](crate::Session::supports)). Neither the request nor any step of its
    /// list had an effect, and the session goes on.
    #[error("the provider has no atomic {}", .0.name())]
    Unsupported(AtomicOp),
    /// The ordered list has more steps than the session takes: 64, or the places in the send queue
    /// of its device if those are fewer. No step had an effect, and the session goes on. Split the
    /// list.
    #[error("an ordered list of {steps} steps, the limit of this session is {limit}: split the list")]
    ListTooLong {
        /// Steps of the list.
        steps: usize,
        /// Maximum number of steps.
        limit: usize,
    },
    /// The request is invalid. It had no effect, and the session goes on.
    #[error("{0}")]
    Invalid(String),
}

impl RequestError {
    /// Returns true if the same request can succeed when it is repeated on the same session. A
    /// repetition is safe for a READ, and for a WRITE if no other party changed the range since
    /// ([why](Self#repeating-a-write-that-publishes)). For others see
    /// [`outcome_unknown`](Self::outcome_unknown).
    ///
    /// After a [`Timeout`](Self::Timeout) of a call the session is closed, and a repetition fails
    /// with [`Disconnected`](Self::Disconnected). That error is not retryable on the same session:
    /// connect a new one.
    pub fn is_retryable(&self) -> bool {
        match self {
            RequestError::Flushed | RequestError::Timeout(_) => true,
            RequestError::Completion(status) => {
                matches!(status, WcStatus::WrFlushErr | WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr)
            }
            RequestError::Disconnected
            | RequestError::Unanswered
            | RequestError::Rejected { .. }
            | RequestError::Cancelled
            | RequestError::Unsupported(_)
            | RequestError::ListTooLong { .. }
            | RequestError::Invalid(_) => false,
        }
    }

    /// Returns true if the request may have taken effect, or may still take effect. A READ has no
    /// effect at the host.
    ///
    /// Returns false for a request that the host or this side refused. In a list
    /// ([`Session::execute`](crate::Session::execute)) the steps before the refused step took
    /// effect, and in a vectored request other parts may have.
    ///
    /// Returns true for all failed calls except refused ones. It is up to the service whether a
    /// call that it refuses changes anything.
    pub fn outcome_unknown(&self) -> bool {
        !matches!(
            self,
            RequestError::Completion(WcStatus::RemAccessErr)
                | RequestError::Unsupported(_)
                | RequestError::ListTooLong { .. }
                | RequestError::Invalid(_)
                | RequestError::Rejected { .. }
        )
    }
}

/// Error of a started request, with the buffer of the request.
///
/// It displays as its [`error`](Self::error). In a function that returns a [`RequestError`], the
/// `?` operator converts it to that, and drops the buffer.
///
/// In a function that returns `Box<dyn Error>`, `?` boxes the whole `Failed` with its buffer. The
/// error downcasts to `Failed<B>` then, and not to `RequestError`. `Box<dyn Error + Send + Sync>`
/// needs a `B` that is `Sync`. `map_err(RequestError::from)` before `?` avoids both.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use rdmabox::{Failed, RemoteAddr, RequestError, Session};
/// # fn repeat_once(session: Arc<Session>, remote: RemoteAddr) -> Result<(), RequestError> {
/// let read = |buffer: Vec<u8>| session.start_read(remote, buffer).wait();
/// // A READ has no effect at the host, so it can be repeated with the buffer that comes back.
/// let _bytes = match read(vec![0; 4096]) {
///     Err(Failed { error, buffer: Some(buffer), .. }) if error.is_retryable() => read(buffer)?,
///     other => other?,
/// };
/// # Ok(())
/// # }
/// ```
#[derive(PartialEq, Eq)]
#[non_exhaustive]
pub struct Failed<B> {
    /// The reason.
    pub error: RequestError,
    /// The buffer of the request. The content of the buffer of a failed READ is undefined.
    ///
    /// `None` for an atomic and for a load of a word, which have no buffer. `None` also if the
    /// transfer goes on without an owner, because a callback [waited](crate::Transfer::wait) for
    /// it. The buffer is dropped when the transfer is done.
    pub buffer: Option<B>,
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

impl From<RemoteMrError> for RequestError {
    fn from(refused: RemoteMrError) -> RequestError {
        RequestError::Invalid(refused.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_tell_what_a_caller_may_do() {
        let timeout = RequestError::Timeout(Duration::from_secs(1));
        let rejected = RequestError::Rejected { reason: "no".into() };
        let cases = [
            // Retryable, outcome unknown.
            (RequestError::Flushed, true, true),
            (timeout, true, true),
            (RequestError::Completion(WcStatus::WrFlushErr), true, true),
            (RequestError::Completion(WcStatus::RetryExcErr), true, true),
            (RequestError::Completion(WcStatus::RnrRetryExcErr), true, true),
            (RequestError::Completion(WcStatus::RemAccessErr), false, false),
            (RequestError::Completion(WcStatus::RemInvReqErr), false, true),
            (RequestError::Completion(WcStatus::RemOpErr), false, true),
            (RequestError::Completion(WcStatus::GeneralErr), false, true),
            (RequestError::Completion(WcStatus::LocLenErr), false, true),
            (RequestError::Completion(WcStatus::LocProtErr), false, true),
            (RequestError::Completion(WcStatus::LocQpOpErr), false, true),
            (RequestError::Disconnected, false, true),
            (RequestError::Unanswered, false, true),
            (RequestError::Cancelled, false, true),
            (rejected, false, false),
            (RequestError::Unsupported(AtomicOp::Min(1)), false, false),
            (RequestError::ListTooLong { steps: 65, limit: 64 }, false, false),
            (RequestError::Invalid("too long".into()), false, false),
        ];
        for (error, retryable, unknown) in cases {
            assert_eq!((error.is_retryable(), error.outcome_unknown()), (retryable, unknown), "{error}");
        }
    }

    #[test]
    fn a_failed_request_shows_its_error_and_no_bytes() {
        let failed = Failed { error: RequestError::Flushed, buffer: Some(vec![1; 8]) };
        assert_eq!(failed.to_string(), RequestError::Flushed.to_string());
        assert_eq!(format!("{failed:?}"), "Failed { error: Flushed, has_buffer: true }");
        assert!(failed.source().is_none());
        assert_eq!(RequestError::from(failed), RequestError::Flushed);
    }
}
