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
    runtime::{Ended, Runtime, Started, in_callback},
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
/// timeouts after it was posted. A polling thread ends it, which looks for overdue requests every
/// half operation timeout. It then fails with [`RequestError::Timeout`] in all cases, and its
/// queue pair is replaced. While it waits for room, it fails after that time if no request of the
/// session completes meanwhile.
///
/// A single transfer cannot be cancelled. [`Session::close`](crate::Session::close) with
/// [`Duration::ZERO`] ends all transfers of the session, and their buffers come back.
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
/// // The outcome was returned: another wait would panic.
/// assert!(read.is_done() && read.is_taken());
/// # Ok(())
/// # }
/// ```
///
/// A queue of transfers, each with a deadline of the program. The wait gives the outcome once, so
/// the queue forgets a transfer when it has its outcome, also if that is an error:
///
/// ```
/// use std::time::{Duration, Instant};
/// use rdmabox::{MemoryServer, Session, Transfer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
/// # let session = Session::builder().connect(&host.addresses()[0])?;
/// # let memory = MemoryServer::locate(&session)?;
/// let mut queue: Vec<(Instant, Transfer<Vec<u8>>)> = Vec::new();
/// for place in 0..8 {
///     let write = session.start_write(memory.for_write(place * 4096, 4096)?, vec![1; 4096]);
///     queue.push((Instant::now() + Duration::from_secs(1), write));
/// }
/// let (mut written, mut failed, mut late) = (0, 0, 0);
/// while !queue.is_empty() {
///     queue.retain_mut(|(deadline, write)| match write.wait_timeout(Duration::from_millis(1)) {
///         Some(Ok(_buffer)) => {
///             written += 1;
///             false
///         }
///         Some(Err(failure)) => {
///             eprintln!("{failure}");
///             failed += 1;
///             false
///         }
///         // Dropped after its deadline: it goes on, and may still take effect.
///         None if Instant::now() > *deadline => {
///             late += 1;
///             false
///         }
///         None => true,
///     });
/// }
/// assert_eq!((written, failed, late), (8, 0, 0));
/// # Ok(())
/// # }
/// ```
#[must_use = "the buffer comes back with the outcome"]
pub struct Transfer<B: Send + 'static> {
    state: State<B>,
}

enum State<B> {
    UnderWay(Started<B>),
    /// It finished when it was started.
    Done(B),
    /// It failed when it was started.
    Failed(Failed<B>),
    /// The outcome was returned.
    Over,
}

// The buffer is never pinned: requests use the memory that it points to.
impl<B: Send + 'static> Unpin for Transfer<B> {}

impl<B: Send + 'static> Transfer<B> {
    pub(crate) fn new(started: Started<B>) -> Transfer<B> {
        Transfer { state: State::UnderWay(started) }
    }

    /// Returns a transfer that finished when it was started.
    #[inline]
    pub(crate) fn done(buf: B) -> Transfer<B> {
        Transfer { state: State::Done(buf) }
    }

    /// Returns a transfer that failed when it was started. Out of line: otherwise the compiler
    /// shares its stores with [`done`](Self::done), which then moves an error that is none.
    #[cold]
    #[inline(never)]
    pub(crate) fn failed(error: RequestError, buffer: Option<B>) -> Transfer<B> {
        Transfer { state: State::Failed(Failed { error, buffer }) }
    }

    /// Returns true if [`wait`](Self::wait) would not block. This call makes no progress itself.
    /// Over TCP only a thread that waits, for this or another request, finds completions.
    ///
    /// A transfer whose outcome was returned is done as well; a wait for it panics.
    /// [`is_taken`](Self::is_taken) tells both apart.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::UnderWay(started) => started.is_done(),
            State::Done(_) | State::Failed(_) | State::Over => true,
        }
    }

    /// Returns true if the outcome was returned, by [`wait_timeout`](Self::wait_timeout) or to a
    /// task. Every further wait for the transfer panics.
    pub fn is_taken(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Blocks until the transfer is done, at most for the operation timeout from this call on, also
    /// after a [`wait_timeout`](Self::wait_timeout). Returns the buffer.
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
    /// If the outcome was returned before, by [`wait_timeout`](Self::wait_timeout) or to a task
    /// ([`is_taken`](Self::is_taken)).
    #[track_caller]
    pub fn wait(mut self) -> Result<B, Failed<B>> {
        if in_callback() && !self.is_done() {
            let error = RequestError::Invalid(NO_WAIT_IN_A_CALLBACK.into());
            return Err(Failed { error, buffer: None });
        }
        self.take().outcome(Started::wait)
    }

    /// Blocks until the transfer is done, at most for `limit`. Returns `None` if the transfer is
    /// still under way. The caller can then wait again, await or drop the transfer.
    ///
    /// The operation timeout counts from the first wait with a limit: by this method, [`wait_any`]
    /// or [`wait_all`]. When it has passed, such a wait fails the transfer with
    /// [`RequestError::Timeout`], as in [`wait`](Self::wait). Inside a callback this call does
    /// not block, and a `limit` of zero does not block anywhere.
    ///
    /// # Errors
    /// Returns the [`Failed`] transfer with its buffer, as [`wait`](Self::wait) does.
    ///
    /// # Panics
    /// If the outcome was returned before, by this method or to a task
    /// ([`is_taken`](Self::is_taken)). An outcome is also a failure: after `Some(Err(_))`, drop the
    /// transfer.
    #[track_caller]
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<B, Failed<B>>> {
        if in_callback() && !self.is_done() {
            return None;
        }
        match self.take() {
            State::UnderWay(started) => match started.wait_timeout(limit) {
                Ok(ended) => Some(outcome(ended)),
                Err(under_way) => {
                    self.state = State::UnderWay(under_way);
                    None
                }
            },
            over => Some(over.outcome(Started::finish)),
        }
    }

    fn take(&mut self) -> State<B> {
        std::mem::replace(&mut self.state, State::Over)
    }
}

impl<B: Send + 'static> Transfer<B> {
    /// Runs `done` with the outcome when the transfer is done; immediately if it is done already.
    pub(crate) fn then(
        mut self,
        runtime: &Runtime,
        done: impl FnOnce(Result<B, Failed<B>>) + Send + 'static,
    ) {
        match self.take() {
            State::UnderWay(started) => started.then(move |result, buf| done(outcome((result, buf)))),
            over => runtime.call_back(|| done(over.outcome(Started::finish))),
        }
    }
}

impl<B> State<B> {
    /// Returns the outcome. `end` ends a transfer that is under way.
    ///
    /// # Panics
    /// If the outcome was returned before.
    #[inline]
    #[track_caller]
    fn outcome(self, end: impl FnOnce(Started<B>) -> Ended<B>) -> Result<B, Failed<B>> {
        match self {
            State::UnderWay(started) => outcome(end(started)),
            State::Done(buf) => Ok(buf),
            State::Failed(failed) => Err(failed),
            State::Over => panic!("the outcome of a transfer is given once, and was returned before"),
        }
    }
}

fn outcome<B>((result, buffer): Ended<B>) -> Result<B, Failed<B>> {
    match (result, buffer) {
        (Ok(()), Some(buf)) => Ok(buf),
        (Err(error), buffer) => Err(Failed { error, buffer }),
        (Ok(()), None) => panic!("a successful transfer has a buffer"),
    }
}

impl<B: Send + 'static> Future for Transfer<B> {
    type Output = Result<B, Failed<B>>;

    /// Returns the outcome and the buffer if the request is done, or registers the waker.
    ///
    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::UnderWay(started) = &mut self.state
            && !started.poll(context.waker())
        {
            return Poll::Pending;
        }
        Poll::Ready(self.take().outcome(Started::finish))
    }
}

impl<B: Send + 'static> Drop for Transfer<B> {
    fn drop(&mut self) {
        if let State::UnderWay(started) = self.take() {
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
