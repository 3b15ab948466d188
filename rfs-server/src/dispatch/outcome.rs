//! What handling a request leads to: a reply, or the promise of one.
//!
//! Threading: plain values. A promise is redeemed by [`Dispatcher::redeem`](super::Dispatcher::redeem), on any thread.

use std::fmt;

use rfs_proto::Reply;

use crate::recalls::Need;

/// Where a reply goes that comes late. It is called once, holding no lock; also when its session has ended by then.
pub struct Sender {
    send: Box<dyn FnOnce(Reply) + Send>,
    /// The file whose tail is swept before the reply is sent.
    sweeps: Option<u64>,
}

impl Sender {
    /// From what is to be done with the reply.
    pub fn new(send: impl FnOnce(Reply) + Send + 'static) -> Sender {
        Sender { send: Box::new(send), sweeps: None }
    }

    /// Has the tail of a file swept before the reply is sent.
    pub(super) fn sweeping(self, ino: Option<u64>) -> Sender {
        Sender { sweeps: ino, ..self }
    }

    /// The file whose tail is to be swept before the reply is sent.
    pub(super) fn sweeps(&self) -> Option<u64> {
        self.sweeps
    }

    pub(super) fn send(self, reply: Reply) {
        (self.send)(reply);
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

/// What handling a request led to.
#[derive(Debug)]
#[must_use]
pub enum Outcome {
    /// The reply.
    Now(Reply),
    /// The reply comes later.
    Later(Promise),
}

/// A reply that is owed.
#[derive(Debug)]
#[must_use]
pub struct Promise(pub(super) Debt);

#[derive(Debug)]
pub(super) enum Debt {
    /// The reply to a change, once those who kept what it changed are done with it. If the change made a file
    /// shorter, the file's tail is swept then.
    Held(Reply, Vec<Need>, Option<u64>),
    /// What this session is to be told next.
    Recalls(u64),
    /// What this session is to be told next of the locks that it waits for.
    Grants(u64),
}
