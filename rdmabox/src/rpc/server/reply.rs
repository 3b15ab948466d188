//! The reply of a service, given at once or deferred, and its refusal.
//!
//! [`Reply`] is filled in by the service during the call. [`PendingReply`] answers the call
//! afterwards. [`CallError`] ends a call without a reply.
//!
//! # Concurrency
//! A `PendingReply` may be used from any thread. No locks.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use crate::rpc::message::MAX_REASON;

/// The end of a call for which a service gives no reply.
///
/// A string converts to [`Rejected`](Self::Rejected), so a service can return
/// `Err("no such table".into())`.
///
/// | | the caller gets | session | log of the host |
/// |-|-|-|-|
/// | [`Rejected`](Self::Rejected) | `RequestError::Rejected` with the reason | goes on | nothing |
/// | [`EndSession`](Self::EndSession) | `RequestError::Disconnected` | ends | the reason |
///
/// ```
/// use rdmabox::CallError;
///
/// fn look_up(table: &[u8]) -> Result<u64, CallError> {
///     match table {
///         b"users" => Ok(7),
///         // A client that sends this is broken.
///         [] => Err(CallError::EndSession("empty name".into())),
///         other => Err(format!("no table {}", String::from_utf8_lossy(other)))?,
///     }
/// }
///
/// assert_eq!(look_up(b"logs"), Err(CallError::Rejected("no table logs".into())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The service refuses this call. The caller gets
    /// [`RequestError::Rejected`](crate::RequestError::Rejected) with the reason, of which 1024
    /// bytes are sent. The session goes on. If the service has [deferred](Reply::defer) the reply,
    /// this has no effect: the handle answers the call.
    #[error("{0}")]
    Rejected(String),
    /// The client violates the protocol of the service. The host logs the reason and ends the
    /// session. The caller gets [`RequestError::Disconnected`](crate::RequestError::Disconnected).
    #[error("{0}")]
    EndSession(String),
}

impl From<String> for CallError {
    fn from(reason: String) -> CallError {
        CallError::Rejected(reason)
    }
}

impl From<&str> for CallError {
    fn from(reason: &str) -> CallError {
        CallError::Rejected(reason.into())
    }
}

/// The answer to a deferred call, which [`PendingReply`] passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer<'a> {
    /// The reply.
    Reply(&'a [u8]),
    /// A refusal, with its reason.
    Rejected(&'a str),
    /// The handle was dropped without an answer.
    Dropped,
}

impl<'a> Answer<'a> {
    /// Returns the bytes that travel to the client.
    pub(super) fn bytes(self) -> &'a [u8] {
        match self {
            Answer::Reply(bytes) => bytes,
            Answer::Rejected(reason) => {
                let mut end = reason.len().min(MAX_REASON);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                &reason.as_bytes()[..end]
            }
            Answer::Dropped => &[],
        }
    }
}

/// The receiver of a [`PendingReply`]'s answer.
type Receiver = Box<dyn FnOnce(Answer<'_>) + Send>;

/// The reply to a call: bytes that the service writes, or a promise to answer
/// [`defer`](Self::defer).
///
/// It dereferences to an empty `Vec<u8>`: `reply.extend_from_slice(b"done")`. At most
/// [`MAX_CALL`](crate::MAX_CALL) bytes fit; a longer reply ends the session.
pub struct Reply<'a> {
    bytes: &'a mut Vec<u8>,
    make_pending: &'a dyn Fn() -> PendingReply,
    deferred: bool,
}

impl<'a> Reply<'a> {
    /// Creates a reply that is written to `bytes`, for direct callers of a service such as tests.
    /// [`defer`](Self::defer) calls `make_pending`.
    pub fn new(bytes: &'a mut Vec<u8>, make_pending: &'a dyn Fn() -> PendingReply) -> Reply<'a> {
        bytes.clear();
        Reply { bytes, make_pending, deferred: false }
    }

    /// Defers the reply. The bytes written here are ignored. The caller gets the answer given
    /// through the handle, from any thread at any time, even before the service's `call` returns.
    /// Only the first handle of a call is effective.
    pub fn defer(&mut self) -> PendingReply {
        if std::mem::replace(&mut self.deferred, true) {
            PendingReply::new(|_| {})
        } else {
            (self.make_pending)()
        }
    }

    /// Returns true if the reply has been deferred.
    pub fn is_deferred(&self) -> bool {
        self.deferred
    }
}

impl Deref for Reply<'_> {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        self.bytes
    }
}

impl DerefMut for Reply<'_> {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        self.bytes
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("bytes", &self.bytes.len()).field("deferred", &self.deferred).finish()
    }
}

/// A call whose reply is still owed, from [`Reply::defer`]. It occupies no thread and no session
/// state. After the end of the session the answer is discarded.
/// [Calls and deferred replies](crate::guide#calls-and-deferred-replies) has an example.
///
/// Dropping it without an answer ends the call at the client with
/// [`RequestError::Unanswered`](crate::RequestError::Unanswered). The session continues.
#[must_use = "dropping it gives the call up"]
pub struct PendingReply(Option<Receiver>);

impl PendingReply {
    /// Creates a handle that passes its answer to `answer`, for direct callers of a service such as
    /// tests.
    pub fn new(answer: impl FnOnce(Answer<'_>) + Send + 'static) -> PendingReply {
        PendingReply(Some(Box::new(answer)))
    }

    /// Answers the call, from any thread and without blocking for the peer. A reply longer than
    /// [`MAX_CALL`](crate::MAX_CALL) ends the session.
    pub fn answer(mut self, reply: &[u8]) {
        if let Some(answer) = self.0.take() {
            answer(Answer::Reply(reply));
        }
    }

    /// Refuses the call, from any thread and without blocking for the peer. The caller gets
    /// [`RequestError::Rejected`](crate::RequestError::Rejected) with the reason, of which 1024
    /// bytes are sent. The session goes on.
    pub fn reject(mut self, reason: &str) {
        if let Some(answer) = self.0.take() {
            answer(Answer::Rejected(reason));
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer(Answer::Dropped);
        }
    }
}

impl fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingReply")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_answer_is_given_once_and_a_drop_gives_none() {
        let (send, receive) = channel();
        let later = || {
            let send = send.clone();
            PendingReply::new(move |answer| {
                let kind = match answer {
                    Answer::Reply(_) => "reply",
                    Answer::Rejected(_) => "rejected",
                    Answer::Dropped => "dropped",
                };
                send.send((kind, answer.bytes().to_vec())).unwrap();
            })
        };
        let mut bytes = b"old".to_vec();
        let mut reply = Reply::new(&mut bytes, &later);
        assert!(reply.is_empty() && !reply.is_deferred());
        reply.defer().answer(b"new");
        assert!(reply.is_deferred());
        // Only the first handle is effective.
        reply.defer().answer(b"again");
        drop(Reply::new(&mut bytes, &later).defer());
        Reply::new(&mut bytes, &later).defer().reject("busy");
        let expected = [("reply", b"new".to_vec()), ("dropped", vec![]), ("rejected", b"busy".to_vec())];
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = format!("{}\u{e9}", "x".repeat(MAX_REASON - 1));
        assert_eq!(Answer::Rejected(&reason).bytes(), &reason.as_bytes()[..MAX_REASON - 1]);
        let reason = "y".repeat(MAX_REASON + 1);
        assert_eq!(Answer::Rejected(&reason).bytes().len(), MAX_REASON);
        // Replies are not cut: a reply that is too long ends the session.
        assert_eq!(Answer::Reply(reason.as_bytes()).bytes().len(), MAX_REASON + 1);
    }

    #[test]
    fn strings_refuse_a_call() {
        assert_eq!(CallError::from("no"), CallError::Rejected("no".into()));
        let refuse = || -> Result<(), CallError> { Err(format!("no table {}", 3))? };
        assert_eq!(refuse(), Err(CallError::Rejected("no table 3".into())));
        assert_eq!(CallError::EndSession("malformed".into()).to_string(), "malformed");
    }
}
