//! Requests that go on after the call that started them.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::RequestError;
use crate::runtime::{Runtime, Started, in_callback};

/// A callback has [waited](Transfer::wait) for a transfer. It is as it was; where this is dropped, or made a [`RequestError`], it
/// goes on, as one that is dropped does.
#[derive(thiserror::Error)]
#[error("{}", super::client::NO_WAIT_IN_A_CALLBACK)]
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

/// A READ or WRITE that was started ([`Session::start_read`](super::Session::start_read),
/// [`start_write`](super::Session::start_write)).
///
/// It is a future, for any executor, and a thread can [`wait`](Self::wait) for it. Either way the buffer comes back with
/// the outcome. One that is dropped goes on; its buffer is dropped when it is done.
#[must_use = "the buffer comes back with the outcome"]
pub struct Transfer<B: Send + 'static> {
    /// None once the outcome has been given.
    started: Option<Started<B>>,
    /// It was over at once: carried out, or refused.
    over: Option<(Result<(), RequestError>, B)>,
}

// The buffer is never pinned: what requests use is what it points to.
impl<B: Send + 'static> Unpin for Transfer<B> {}

impl<B: Send + 'static> Transfer<B> {
    pub(super) fn new(started: Started<B>) -> Transfer<B> {
        Transfer { started: Some(started), over: None }
    }

    pub(super) fn over(result: Result<(), RequestError>, buf: B) -> Transfer<B> {
        Transfer { started: None, over: Some((result, buf)) }
    }

    /// True if waiting for it would not block. Asking does not bring it forward: over TCP it is somebody who waits, for
    /// this or another request, that finds out.
    pub fn is_done(&self) -> bool {
        self.started.as_ref().is_none_or(Started::is_done)
    }

    /// Blocks until it is done, at most for the operation timeout from now on, and gives the outcome and the buffer.
    ///
    /// # Errors
    /// In a callback, where it would hold up the completion that it waits for, unless it [is done](Self::is_done).
    ///
    /// # Panics
    /// If its outcome has been given to a task already.
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
    /// Has `done` run with the outcome and the buffer: now, if it is done already.
    pub(super) fn then(
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
    /// If it is polled after it was ready.
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
