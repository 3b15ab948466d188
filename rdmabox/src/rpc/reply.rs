//! What a service answers with: at once, or later.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

/// Where the reply of a [`Later`] goes; `None` when it is dropped.
type Answer = Box<dyn FnOnce(Option<&[u8]>) + Send>;

/// The reply to a call: bytes that the service fills in, or the promise to do so [`later`](Self::later).
///
/// It is a `Vec<u8>` to whoever fills it, and comes empty. At most [`MAX_CALL`](crate::MAX_CALL) bytes fit.
pub struct Reply<'a> {
    bytes: &'a mut Vec<u8>,
    make_later: &'a dyn Fn() -> Later,
    deferred: bool,
}

impl<'a> Reply<'a> {
    /// A reply that is written into `bytes`, for those who call a service themselves, in tests for instance. `make_later`
    /// is what [`later`](Self::later) calls.
    pub fn new(bytes: &'a mut Vec<u8>, make_later: &'a dyn Fn() -> Later) -> Reply<'a> {
        bytes.clear();
        Reply { bytes, make_later, deferred: false }
    }

    /// Promises the reply for later. What is here counts no more: the caller gets what goes through the handle, from
    /// whichever thread and whenever, also before the service's `call` returns. A call has one such handle: the answer of
    /// any further one goes nowhere.
    pub fn later(&mut self) -> Later {
        if std::mem::replace(&mut self.deferred, true) { Later::new(|_| {}) } else { (self.make_later)() }
    }

    /// True if the reply has been promised for later.
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

/// A call whose reply is still owed. It holds no thread, and nothing of the session: when that has ended, the answer
/// goes nowhere.
///
/// Dropped without an answer, it ends the call at the client with
/// [`RequestError::Unanswered`](crate::RequestError::Unanswered); the session goes on.
#[must_use = "dropping it gives the call up"]
pub struct Later(Option<Answer>);

impl Later {
    /// A handle that gives its answer to `answer`, or `None` when it is dropped without one.
    pub fn new(answer: impl FnOnce(Option<&[u8]>) + Send + 'static) -> Later {
        Later(Some(Box::new(answer)))
    }

    /// Answers the call. Any thread may; it is a send, and no wait. A reply longer than
    /// [`MAX_CALL`](crate::MAX_CALL) ends the session, as one that a service gives at once does.
    pub fn answer(mut self, reply: &[u8]) {
        if let Some(answer) = self.0.take() {
            answer(Some(reply));
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer(None);
        }
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_answer_is_given_once_and_a_drop_tells_that_there_is_none() {
        let (send, receive) = channel();
        let later = || {
            let send = send.clone();
            Later::new(move |answer| send.send(answer.map(<[u8]>::to_vec)).unwrap())
        };
        let mut bytes = b"old".to_vec();
        let mut reply = Reply::new(&mut bytes, &later);
        assert!(reply.is_empty() && !reply.is_deferred());
        reply.later().answer(b"new");
        assert!(reply.is_deferred());
        // A call is answered once.
        reply.later().answer(b"again");
        drop(Reply::new(&mut bytes, &later).later());
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), [Some(b"new".to_vec()), None]);
    }
}
