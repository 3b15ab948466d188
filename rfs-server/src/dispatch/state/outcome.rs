//! The outcome of a request: a reply, or a reply that is held until later.
//!
//! # Concurrency
//! Plain values. Any thread may call
//! [`Dispatcher::redeem`](crate::dispatch::Dispatcher::redeem) with a [`HeldReply`].

use std::fmt;

use rfs_proto::Reply;

use super::journal::Number;
use crate::coherence::recall_queue::Need;

/// The destination of a deferred reply. The dispatcher calls it once, without holding a lock,
/// even if the session has ended meanwhile.
pub struct Sender {
    send: Box<dyn FnOnce(Reply) + Send>,
    /// The file whose tail is swept before the reply is sent.
    sweeps: Option<u64>,
}

impl Sender {
    /// Creates a sender that passes the reply to `send`.
    pub fn new(send: impl FnOnce(Reply) + Send + 'static) -> Sender {
        Sender { send: Box::new(send), sweeps: None }
    }

    /// Sets the file whose tail is swept before the reply is sent.
    pub(in crate::dispatch) fn sweeping(self, ino: Option<u64>) -> Sender {
        Sender { sweeps: ino, ..self }
    }

    /// Returns the file whose tail is to be swept before the reply is sent.
    pub(in crate::dispatch) fn sweeps(&self) -> Option<u64> {
        self.sweeps
    }

    pub(in crate::dispatch) fn send(self, reply: Reply) {
        (self.send)(reply);
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

/// The outcome of a request.
#[derive(Debug)]
#[must_use]
pub enum Outcome {
    /// The reply, to be sent at once.
    Now(Reply),
    /// A reply that is sent later.
    Deferred(HeldReply),
}

/// A reply that the dispatcher holds until a session acknowledges or a grant arrives.
#[derive(Debug)]
#[must_use]
pub struct HeldReply(pub(in crate::dispatch) DeferredReply);

impl HeldReply {
    /// Returns whether the reply answers a change, and waits for acknowledgements. The others wait
    /// for the next event of a session.
    pub fn answers_change(&self) -> bool {
        matches!(self.0, DeferredReply::Change(..))
    }
}

#[derive(Debug)]
pub(in crate::dispatch) enum DeferredReply {
    /// The reply to a change, due when these recalls are acknowledged. If the change truncated a
    /// file, the file's tail is swept first.
    Change(Reply, Vec<Need>, Option<u64>),
    /// The next recalls of this session.
    Recalls(u64),
    /// The next lock grants of this session.
    Grants(u64),
    /// The reply to a request of this session that is in execution.
    Repeated(u64, Number),
}
