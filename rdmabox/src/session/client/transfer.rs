//! Asynchronous requests: READs and WRITEs that outlive the call that started them.
//!
//! # Concurrency
//! A [`Transfer`] is awaited or polled by one thread at a time. Its completion may be found by
//! any thread.

mod pending;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

pub use self::pending::{Pending, wait_all, wait_any};
pub(super) use self::pending::{UnderWay, sealed::Waits};
use super::checks::NO_WAIT_IN_A_CALLBACK;
use crate::{
    error::{Failed, RequestError},
    runtime::{Runtime, Started, in_callback},
};

/// A started READ or WRITE ([`Session::start_read`](crate::Session::start_read),
/// [`start_write`](crate::Session::start_write)), atomic or ordered list
/// ([`start_fetch_add`](crate::Session::start_fetch_add),
/// [`start_execute`](crate::Session::start_execute)).
///
/// It is a future for any executor. A thread can also [`wait`](Self::wait) for it. Both return
/// the buffer, in [`Failed`] if the transfer failed. An atomic returns the old value instead, and a
/// load the word. A dropped transfer goes on, and its buffer is dropped when the transfer is done.
/// A transfer that is only kept may make no progress: over TCP a thread has to wait for it, await
/// it or drop it.
///
/// | started by | `B` | success | failure |
/// |-|-|-|-|
/// | `start_write`, `start_read` | the buffer | the buffer | the buffer, in [`Failed::buffer`] |
/// | `start_compare_swap`, `start_fetch_add`, `start_fetch_op` | `u64` | the old value | no buffer |
/// | `start_load_u64` | `u64` | the word | no buffer |
/// | `start_execute` | the list, `Vec<OwnedOp<_>>` | the list | the list |
///
/// Each transfer that is waited for ends. A thread waits at most for the operation timeout. A
/// transfer that is awaited, dropped, or has a callback fails at most one and a half operation
/// timeouts after it was posted. It then fails with [`RequestError::Timeout`] in all cases, and its
/// queue pair is replaced. While it waits for room, it fails after that time if no request of the
/// session completes meanwhile.
///
/// ```
/// use std::time::Duration;
/// # use rdmabox::{MemoryServer, Session};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 4096)?;
/// # let session = Session::builder().connect(&host.addresses()[0])?;
/// # let memory = MemoryServer::locate(&session)?;
/// let write = session.start_write(memory.for_write(0, 5)?, b"hello".to_vec());
/// let mut read = session.start_read(memory.for_read(64, 8)?, vec![0; 8]);
/// // The buffers come back.
/// assert_eq!(write.wait()?, b"hello");
/// let zeros = loop {
///     match read.wait_timeout(Duration::from_millis(10)) {
///         Some(outcome) => break outcome?,
///         None => println!("still under way"),
///     }
/// };
/// assert_eq!(zeros, [0; 8]);
/// # Ok(())
/// # }
/// ```
#[must_use = "the buffer comes back with the outcome"]
pub struct Transfer<B: Send + 'static> {
    /// `None` after the outcome was returned.
    started: Option<Started<B>>,
    /// Outcome of a transfer that finished or was refused when it was started.
    over: Option<Result<B, Failed<B>>>,
}

// The buffer is never pinned: requests use the memory that it points to.
impl<B: Send + 'static> Unpin for Transfer<B> {}

impl<B: Send + 'static> Transfer<B> {
    pub(crate) fn new(started: Started<B>) -> Transfer<B> {
        Transfer { started: Some(started), over: None }
    }

    pub(crate) fn finished(result: Result<(), RequestError>, buf: B) -> Transfer<B> {
        Transfer { started: None, over: Some(with_buffer(result, buf)) }
    }

    /// Returns a transfer that had no buffer when it failed.
    pub(crate) fn failed(error: RequestError) -> Transfer<B> {
        Transfer { started: None, over: Some(Err(Failed { error, buffer: None })) }
    }

    /// Returns true if [`wait`](Self::wait) would not block. This call makes no progress itself.
    /// Over TCP only a thread that waits, for this or another request, finds completions.
    pub fn is_done(&self) -> bool {
        self.started.as_ref().is_none_or(Started::is_done)
    }

    /// Blocks until the transfer is done, at most for the operation timeout from now on. Returns
    /// the buffer.
    ///
    /// # Errors
    /// Returns the [`Failed`] transfer with its buffer. [`RequestError`] tells whether it can be
    /// repeated.
    ///
    /// Fails with [`RequestError::Invalid`] and without the buffer inside a callback, where waiting
    /// would block the completion that it waits for. The transfer goes on without an owner then.
    /// A callback can use [`wait_timeout`](Self::wait_timeout), which keeps the transfer.
    /// A transfer that [is done](Self::is_done) can be waited for anywhere.
    ///
    /// # Panics
    /// If the outcome was returned before, by [`wait_timeout`](Self::wait_timeout) or to a task.
    pub fn wait(mut self) -> Result<B, Failed<B>> {
        if let Some(over) = self.over.take() {
            return over;
        }
        if in_callback() && !self.is_done() {
            let error = RequestError::Invalid(NO_WAIT_IN_A_CALLBACK.into());
            return Err(Failed { error, buffer: None });
        }
        outcome(self.started.take().map(Started::wait))
    }

    /// Blocks until the transfer is done, at most for `limit`. Returns `None` if the transfer is
    /// still under way. The caller can then wait again, await or drop the transfer.
    ///
    /// The operation timeout counts from the first wait. When it has passed, the transfer fails
    /// with [`RequestError::Timeout`], as in [`wait`](Self::wait). Inside a callback this call does
    /// not block, and a `limit` of zero does not block anywhere.
    ///
    /// # Errors
    /// Returns the [`Failed`] transfer with its buffer, as [`wait`](Self::wait) does.
    ///
    /// # Panics
    /// If the outcome was returned before, by this method or to a task.
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<B, Failed<B>>> {
        if let Some(over) = self.over.take() {
            return Some(over);
        }
        if in_callback() && !self.is_done() {
            return None;
        }
        match self.started.take().map(|started| started.wait_timeout(limit)) {
            Some(Err(under_way)) => {
                self.started = Some(under_way);
                None
            }
            Some(Ok(ended)) => Some(outcome(Some(ended))),
            None => Some(outcome(None)),
        }
    }
}

impl<B: Send + 'static> Transfer<B> {
    /// Runs `done` with the outcome when the transfer is done; immediately if it is done already.
    pub(crate) fn then(
        mut self,
        runtime: &Runtime,
        done: impl FnOnce(Result<B, Failed<B>>) + Send + 'static,
    ) {
        if let Some(over) = self.over.take() {
            return runtime.call_back(|| done(over));
        }
        if let Some(started) = self.started.take() {
            started.then(move |result, buf| done(outcome(Some((result, buf)))));
        }
    }
}

fn with_buffer<B>(result: Result<(), RequestError>, buf: B) -> Result<B, Failed<B>> {
    match result {
        Ok(()) => Ok(buf),
        Err(error) => Err(Failed::new(error, buf)),
    }
}

/// Returns the outcome of a transfer that has ended.
///
/// # Panics
/// If there is none, because it was returned before.
fn outcome<B>(ended: Option<(Result<(), RequestError>, Option<B>)>) -> Result<B, Failed<B>> {
    match ended {
        Some((Ok(()), Some(buf))) => Ok(buf),
        Some((Err(error), buffer)) => Err(Failed { error, buffer }),
        _ => panic!("the outcome of a transfer is given once"),
    }
}

impl<B: Send + 'static> Future for Transfer<B> {
    type Output = Result<B, Failed<B>>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(over) = self.over.take() {
            return Poll::Ready(over);
        }
        if self.started.as_mut().is_some_and(|started| !started.poll(context.waker())) {
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
