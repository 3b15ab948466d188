//! The reply of a service, given at once or deferred.
//!
//! [`Reply`] is filled in by the service during the call. [`PendingReply`] answers the call after
//! that.
//!
//! # Concurrency
//! A `PendingReply` may be used from any thread. No locks.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

/// The receiver of a [`PendingReply`]'s reply. It gets `None` if the handle is dropped.
type Answer = Box<dyn FnOnce(Option<&[u8]>) + Send>;

/// The reply to a call: bytes that the service writes, or a promise to answer
/// [`defer`](Self::defer).
///
/// It dereferences to an empty `Vec<u8>`. At most [`MAX_CALL`](crate::MAX_CALL) bytes fit.
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

/// A call whose reply is still owed. It occupies no thread and no session state. After the end of
/// the session the answer is discarded.
///
/// Dropping it without an answer ends the call at the client with
/// [`RequestError::Unanswered`](crate::RequestError::Unanswered). The session continues.
#[must_use = "dropping it gives the call up"]
pub struct PendingReply(Option<Answer>);

impl PendingReply {
    /// Creates a handle that passes its answer to `answer`, or `None` if it is dropped without one.
    pub fn new(answer: impl FnOnce(Option<&[u8]>) + Send + 'static) -> PendingReply {
        PendingReply(Some(Box::new(answer)))
    }

    /// Answers the call, from any thread and without blocking for the peer. A reply longer than
    /// [`MAX_CALL`](crate::MAX_CALL) ends the session.
    pub fn answer(mut self, reply: &[u8]) {
        if let Some(answer) = self.0.take() {
            answer(Some(reply));
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer(None);
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
            PendingReply::new(move |answer| send.send(answer.map(<[u8]>::to_vec)).unwrap())
        };
        let mut bytes = b"old".to_vec();
        let mut reply = Reply::new(&mut bytes, &later);
        assert!(reply.is_empty() && !reply.is_deferred());
        reply.defer().answer(b"new");
        assert!(reply.is_deferred());
        // Only the first handle is effective.
        reply.defer().answer(b"again");
        drop(Reply::new(&mut bytes, &later).defer());
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), [Some(b"new".to_vec()), None]);
    }
}
