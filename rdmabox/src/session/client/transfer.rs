//! Asynchronous requests: READs and WRITEs that outlive the call that started them.
//!
//! # Concurrency
//! A [`Transfer`] is awaited or polled by one thread at a time. Its completion may be found by
//! any thread.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::{
    error::RequestError,
    runtime::{Runtime, Started, in_callback},
};

/// Error of a [wait](Transfer::wait) inside a callback. It contains the transfer, unchanged.
/// Dropping this error, or converting it to a [`RequestError`], lets the transfer go on without
/// an owner.
#[derive(thiserror::Error)]
#[error("{}", super::checks::NO_WAIT_IN_A_CALLBACK)]
pub struct NotWaited<B: Send + 'static>(pub Transfer<B>);

impl<B: Send + 'static> fmt::Debug for NotWaited<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NotWaited").field(&self.0).finish()
    }
}

impl<B: Send + 'static> From<NotWaited<B>> for RequestError {
    fn from(refused: NotWaited<B>) -> RequestError {
        RequestError::Invalid(refused.to_string())
    }
}

/// A started READ or WRITE ([`Session::start_read`](crate::Session::start_read),
/// [`start_write`](crate::Session::start_write)).
///
/// It is a future for any executor. A thread can also [`wait`](Self::wait) for it. Both return
/// the buffer with the outcome. A dropped transfer goes on, and its buffer is dropped when the
/// transfer is done.
#[must_use = "the buffer comes back with the outcome"]
pub struct Transfer<B: Send + 'static> {
    /// `None` after the outcome was returned.
    started: Option<Started<B>>,
    /// Outcome of a transfer that finished or was refused when it was started.
    over: Option<(Result<(), RequestError>, B)>,
}

// The buffer is never pinned: requests use the memory that it points to.
impl<B: Send + 'static> Unpin for Transfer<B> {}

impl<B: Send + 'static> Transfer<B> {
    pub(crate) fn new(started: Started<B>) -> Transfer<B> {
        Transfer { started: Some(started), over: None }
    }

    pub(crate) fn finished(result: Result<(), RequestError>, buf: B) -> Transfer<B> {
        Transfer { started: None, over: Some((result, buf)) }
    }

    /// Returns true if [`wait`](Self::wait) would not block. This call makes no progress itself.
    /// Over TCP only a thread that waits, for this or another request, finds completions.
    pub fn is_done(&self) -> bool {
        self.started.as_ref().is_none_or(Started::is_done)
    }

    /// Blocks until the transfer is done, at most for the operation timeout from now on. Returns
    /// the outcome and the buffer.
    ///
    /// # Errors
    /// Fails inside a callback, where waiting would block the completion that it waits for. A
    /// transfer that [is done](Self::is_done) can be waited for anywhere.
    ///
    /// # Panics
    /// If a task has already received the outcome.
    pub fn wait(mut self) -> Result<(Result<(), RequestError>, B), NotWaited<B>> {
        if let Some(over) = self.over.take() {
            return Ok(over);
        }
        if in_callback() && !self.is_done() {
            return Err(NotWaited(self));
        }
        Ok(outcome(self.started.take().map(Started::wait)))
    }
}

impl<B: Send + 'static> Transfer<B> {
    /// Runs `done` with the outcome and the buffer when the transfer is done; immediately if it is
    /// done already.
    pub(crate) fn then(
        mut self,
        runtime: &Runtime,
        done: impl FnOnce(Result<(), RequestError>, B) + Send + 'static,
    ) {
        if let Some((result, buf)) = self.over.take() {
            return runtime.call_back(|| done(result, buf));
        }
        if let Some(started) = self.started.take() {
            started.then(move |result, buf| {
                let (result, buf) = outcome(Some((result, buf)));
                done(result, buf);
            });
        }
    }
}

fn outcome<B>(given: Option<(Result<(), RequestError>, Option<B>)>) -> (Result<(), RequestError>, B) {
    match given {
        Some((result, Some(buf))) => (result, buf),
        _ => panic!("the outcome of a transfer is given once"),
    }
}

impl<B: Send + 'static> Future for Transfer<B> {
    type Output = (Result<(), RequestError>, B);

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(over) = self.over.take() {
            return Poll::Ready(over);
        }
        if self.started.as_ref().is_some_and(|started| !started.poll(context.waker())) {
            return Poll::Pending;
        }
        Poll::Ready(outcome(self.started.take().map(Started::finish)))
    }
}

impl<B: Send + 'static> Drop for Transfer<B> {
    fn drop(&mut self) {
        if let Some(started) = self.started.take() {
            if started.is_done() {
                drop(started.finish());
            } else {
                started.then(|_, buf| drop(buf));
            }
        }
    }
}

impl<B: Send + 'static> fmt::Debug for Transfer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
