//! A call that its owner awaits, waits for or drops.
//!
//! # Concurrency
//! A [`PendingCall`] is awaited or polled by one thread at a time. Its reply may be found by any
//! thread.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use super::super::{
    checks::NO_WAIT_IN_A_CALLBACK,
    session::Shared,
    transfer::{Pending, UnderWay, Waits},
};
use crate::{
    error::RequestError,
    rpc::{CallState, RpcClient},
    runtime::{CqSource, Waitable, in_callback},
};

/// A call under way ([`Session::call_async`](crate::Session::call_async)). It is a future whose
/// output is the reply.
///
/// Dropping it cancels the call. A call that waits at the client is then never sent. A call that
/// was sent may be executed, and its reply is ignored. The service is not notified. If it does not
/// answer a sent call within the operation timeout, the session ends, even if the call was dropped.
///
/// If the session is dropped, the call fails with [`RequestError::Disconnected`].
#[must_use = "dropping it cancels the call"]
pub struct PendingCall {
    rpc: Arc<RpcClient>,
    session: Weak<Shared>,
    call: Arc<CallState>,
    /// The outcome was returned.
    over: bool,
}

impl PendingCall {
    pub(super) fn new(rpc: Arc<RpcClient>, session: Weak<Shared>, call: Arc<CallState>) -> PendingCall {
        PendingCall { rpc, session, call, over: false }
    }

    /// Returns true if [`wait`](Self::wait) would not block. This call makes no progress itself.
    pub fn is_done(&self) -> bool {
        self.call.is_done()
    }

    /// Blocks until the reply arrives, and returns it. The calling thread polls for it.
    ///
    /// # Errors
    /// As for [`Session::call`](crate::Session::call). In a callback, a call that is not done is
    /// cancelled, and the error is [`RequestError::Invalid`].
    ///
    /// # Panics
    /// If the outcome was returned before, by [`wait_timeout`](Self::wait_timeout) or to a task.
    pub fn wait(mut self) -> Result<Vec<u8>, RequestError> {
        if in_callback() && !self.is_done() {
            return Err(RequestError::Invalid(NO_WAIT_IN_A_CALLBACK.into()));
        }
        // The session fails when the call is overdue, and the call with it.
        while !self.rpc.wait_pending(&self.call, self.call.due()) {}
        self.take()
    }

    /// Blocks until the reply arrives, at most for `limit`. Returns `None` if the call is still
    /// under way. The caller can then wait again, await or drop the call. Inside a callback this
    /// does not block.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    ///
    /// # Panics
    /// If the outcome was returned before, by this method or to a task.
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<Vec<u8>, RequestError>> {
        if !in_callback() && !self.is_done() {
            let now = Instant::now();
            let deadline = now.checked_add(limit).unwrap_or_else(|| self.call.due());
            self.rpc.wait_pending(&self.call, deadline);
        }
        self.is_done().then(|| self.take())
    }

    fn take(&mut self) -> Result<Vec<u8>, RequestError> {
        let outcome = self.call.outcome();
        self.over = true;
        match outcome {
            Some(outcome) => self.end(outcome),
            None => Err(RequestError::Disconnected),
        }
    }

    /// Closes the session if it cannot go on after the outcome.
    fn end(&self, outcome: Result<Vec<u8>, RequestError>) -> Result<Vec<u8>, RequestError> {
        match self.session.upgrade() {
            Some(session) if outcome.is_err() => session.after_call(outcome),
            _ => outcome,
        }
    }
}

impl Future for PendingCall {
    type Output = Result<Vec<u8>, RequestError>;

    /// Returns the reply of the call if it is there, or registers the waker.
    ///
    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = self.rpc.poll_pending(&self.call, context.waker());
        outcome.map(|outcome| {
            self.over = true;
            self.end(outcome)
        })
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.over {
            self.rpc.cancel_pending(&self.call);
        }
    }
}

impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl Pending for PendingCall {
    fn is_done(&self) -> bool {
        PendingCall::is_done(self)
    }
}

impl Waits for PendingCall {
    fn under_way(&mut self) -> UnderWay<'_> {
        UnderWay(Some(self))
    }
}

impl Waitable for PendingCall {
    fn is_done(&self) -> bool {
        PendingCall::is_done(self)
    }

    fn begin_wait(&mut self) -> Instant {
        self.call.set_waiting(true);
        self.call.due()
    }

    fn end_wait(&mut self) {
        self.call.set_waiting(false);
    }

    fn abandon(&mut self) {
        self.rpc.fail_overdue_call(&self.call);
    }

    fn sources<'a>(&'a self, visit: &mut dyn FnMut(CqSource<'a>)) -> bool {
        visit(self.rpc.source());
        true
    }
}
