//! Calls of the host's service.
//!
//! # Concurrency
//! Any thread may call these methods, except inside a completion callback. No locks.

mod pending_call;

use std::sync::Arc;

pub use self::pending_call::PendingCall;
use super::{
    checks::refuse_in_callback,
    session::{Session, Shared},
};
use crate::{error::RequestError, rpc::Cancel};

impl Session {
    /// Calls the host's service and waits for its reply, which replaces the content of `reply`.
    /// Request and reply have at most [`MAX_CALL`](crate::MAX_CALL) bytes each. A
    /// [deferred](crate::Reply::defer) reply must also arrive within the operation timeout, and the
    /// call keeps its call slot until then.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a request that is too long. [`RequestError::Rejected`] with
    /// the service's reason if it refuses the call. [`RequestError::Unanswered`] if it gives up
    /// the call. After any other error the session is closed, and it is unknown whether the call
    /// was executed. The content of `reply` is undefined after an error.
    pub fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        refuse_in_callback()?;
        // A call through mapped memory needs no queue pair: the host could answer it for a moment
        // after the session has ended.
        if !self.shared.runtime.is_alive() {
            return Err(RequestError::Disconnected);
        }
        let result = self.shared.rpc.call(request, reply, self.timeout);
        self.after_call(result)
    }

    /// Makes several calls concurrently and waits for all replies, which replace the content of
    /// `replies`.
    ///
    /// Concurrent `call_all` calls together use at most half of the session's call slots, so a
    /// single call always finds a slot. The host executes the calls in any order.
    ///
    /// # Errors
    /// As for [`call`](Self::call). It is unknown which of the calls were executed.
    pub fn call_all(&self, requests: &[Vec<u8>], replies: &mut Vec<Vec<u8>>) -> Result<(), RequestError> {
        refuse_in_callback()?;
        if !self.shared.runtime.is_alive() {
            return Err(RequestError::Disconnected);
        }
        replies.resize_with(requests.len(), Vec::new);
        let result = self.shared.rpc.call_all(requests, replies, self.timeout);
        self.after_call(result)
    }

    /// Calls the host's service and waits for its reply, without a timeout, until the session ends
    /// or `cancel` ends the wait.
    ///
    /// The service must answer or [defer](crate::Reply::defer) its reply within the operation
    /// timeout. A deferred call frees its call slot, uses no processor time, and lasts as long as
    /// the peer is there. Up to 4096 calls can wait. The first one connects a queue pair for
    /// deferred replies.
    ///
    /// The service is not notified of a cancelled call. If it has to know, the client must make
    /// another call.
    ///
    /// # Errors
    /// As for [`call`](Self::call). After [`RequestError::Cancelled`] the session goes on.
    pub fn call_waiting(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
    ) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self
            .shared
            .rpc
            .call_waiting(request, reply, cancel, self.timeout, &|| self.shared.deferred_qp.connect());
        self.after_call(result)
    }

    /// Starts a call of the host's service and returns. Only
    /// [`SessionOptions::started_reply`](crate::SessionOptions::started_reply) gets the reply.
    ///
    /// The next thread that polls for a reply, in [`call`](Self::call) or
    /// [`finish_calls`](Self::finish_calls), takes the reply. Without such a thread the reply stays
    /// unread. At most eight started calls can be outstanding; `start_call` waits for one of them
    /// if there are more. If a started call stays unanswered for the operation timeout the session
    /// ends. The next call reports that.
    ///
    /// The host executes calls in any order, even calls of one thread. If a call has to come after
    /// a started call, wait for [`finish_calls`](Self::finish_calls) in between.
    ///
    /// # Errors
    /// The call was not made, and `started_reply` does not run: [`RequestError::Invalid`] for a
    /// request that is too long. Otherwise the session is closed, possibly just now, because no
    /// outstanding call was answered within the operation timeout.
    pub fn start_call(&self, request: &[u8]) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self.shared.rpc.start_call(request, self.timeout);
        self.after_call(result)
    }

    /// Waits until all previously [started](Self::start_call) calls are answered and
    /// `started_reply` has run for each. Waits at most for the operation timeout.
    ///
    /// # Errors
    /// The session is closed, and it is unknown whether its last started calls were executed.
    pub fn finish_calls(&self) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self.shared.rpc.finish_calls(self.timeout);
        self.after_call(result)
    }

    /// Starts a call whose reply comes to its owner: a future for any executor. A thread can also
    /// [`wait`](PendingCall::wait) for it. Dropping the [`PendingCall`] cancels it. Never blocks.
    ///
    /// Any number of such calls can be started from one thread. The host gets up to eight of them
    /// at once. Up to 4096 others wait at the client, in the order of their starts. A deferred
    /// reply must arrive within the operation timeout, which counts from this call on.
    ///
    /// A thread of the session polls for the replies while tasks await them. It starts when the
    /// first call is awaited, and sleeps while no call is under way.
    ///
    /// # Errors
    /// The outcome has the error, as with [`call`](Self::call).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use rdmabox::{CallError, Host, Peer, Reply, Service, Session, SessionOptions};
    /// # struct Echo;
    /// # impl Service for Echo {
    /// #     fn call(&self, _: &Peer, call: &[u8], reply: &mut Reply) -> Result<(), CallError> {
    /// #         reply.extend_from_slice(call);
    /// #         Ok(())
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = Host::new()?.listen(&["127.0.0.1:0".parse()?], Arc::new(Echo))?;
    /// # let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
    /// let calls = ["a", "b", "c"].map(|name| session.call_async(name.into()));
    /// // This one is cancelled, and its reply is not kept.
    /// drop(session.call_async(b"never mind".to_vec()));
    /// let replies = futures::executor::block_on(futures::future::try_join_all(calls))?;
    /// assert_eq!(replies, [b"a", b"b", b"c"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn call_async(&self, request: Vec<u8>) -> PendingCall {
        let call = self.shared.rpc.begin_pending(request, self.timeout);
        PendingCall::new(Arc::clone(&self.shared.rpc), Arc::downgrade(&self.shared), call)
    }

    fn after_call(&self, result: Result<(), RequestError>) -> Result<(), RequestError> {
        self.shared.after_call(result)
    }
}

impl Shared {
    /// Ends the session if it cannot go on after the outcome of a call.
    fn after_call<T>(&self, result: Result<T, RequestError>) -> Result<T, RequestError> {
        use RequestError::{Cancelled, Invalid, Rejected, Unanswered};
        let goes_on = matches!(result, Ok(_) | Err(Invalid(_) | Unanswered | Rejected { .. } | Cancelled));
        if self.rpc.is_dead() || !goes_on {
            // It is unknown whether the host executed the call, so the session cannot go on. The
            // host notices the closed stream.
            self.end();
        }
        result
    }
}
