//! Waits of one thread for several transfers and calls, of any types and sessions.
//!
//! # Concurrency
//! The waiting thread has exclusive access to all of them. No locks.

use std::{fmt, time::Duration};

use super::{State, Transfer};
use crate::runtime::{Waitable, deadline_of, in_callback, wait_many};

/// Something that is under way: a [`Transfer`] or a [`PendingCall`](crate::PendingCall).
/// [`wait_any`] and [`wait_all`] wait for several of them, of any types and sessions.
///
/// Only types of this crate implement it.
pub trait Pending: sealed::Waits {
    /// Returns true if a wait for it would not block. One whose outcome was returned is done as
    /// well; a wait for it panics.
    fn is_done(&self) -> bool;
}

/// Supertrait of [`Pending`], which other crates cannot name.
pub(crate) mod sealed {
    use super::UnderWay;

    pub trait Waits {
        /// Returns it for a wait.
        fn under_way(&mut self) -> UnderWay<'_>;
    }
}

/// The event that a thread waits for; none if it is done.
pub struct UnderWay<'a>(pub(crate) Option<&'a mut (dyn Waitable + 'a)>);

impl fmt::Debug for UnderWay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnderWay").field(&self.0.is_some()).finish()
    }
}

impl<B: Send + 'static> Pending for Transfer<B> {
    fn is_done(&self) -> bool {
        Transfer::is_done(self)
    }
}

impl<B: Send + 'static> sealed::Waits for Transfer<B> {
    fn under_way(&mut self) -> UnderWay<'_> {
        UnderWay(match &mut self.state {
            State::UnderWay(started) => Some(started),
            State::Done(_) | State::Failed(_) | State::Over => None,
        })
    }
}

/// Blocks until one of `pending` is done, at most for `limit`. Returns the index of the first one
/// that is done, or `None` if there is none. The wait for that one then does not block. The others
/// go on: the program can wait for them again, or drop them. `None` at once if `pending` is empty.
///
/// One whose outcome was returned before counts as done, and a wait for it panics: leave it out.
/// Over shared memory a started request is done when it is started, so the first one is returned.
///
/// The calling thread moves the data of all sessions meanwhile. In a callback this call does not
/// block. A transfer that is overdue is ended, as in [`Transfer::wait_timeout`], and so done.
///
/// ```
/// # use std::time::Duration;
/// # use rdmabox::{MemoryServer, Pending, Session, SessionOptions, wait_all, wait_any};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
/// # let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
/// # let base = MemoryServer::locate(&session)?.base();
/// let mut write = session.start_write(base, vec![7; 4096]);
/// let mut count = session.start_fetch_add(base.at(8192), 1);
/// let second = Duration::from_secs(1);
/// let first = wait_any(&mut [&mut write, &mut count], second).expect("one is done by now");
/// println!("number {first} was faster");
/// assert!(wait_all(&mut [&mut write, &mut count], second));
/// // Neither of these blocks.
/// (write.wait()?, count.wait()?);
/// # Ok(())
/// # }
/// ```
pub fn wait_any(pending: &mut [&mut dyn Pending], limit: Duration) -> Option<usize> {
    let first = |pending: &[&mut dyn Pending]| pending.iter().position(|one| one.is_done());
    first(pending).or_else(|| {
        wait(pending, false, limit);
        first(pending)
    })
}

/// Blocks until all of `pending` are done, at most for `limit`. Returns true if all are done. The
/// waits for them then do not block.
///
/// One whose outcome was returned before counts as done. True at once if `pending` is empty.
///
/// As with [`wait_any`], the calling thread moves the data of all sessions, and overdue transfers
/// are ended. In a callback this call does not block.
pub fn wait_all(pending: &mut [&mut dyn Pending], limit: Duration) -> bool {
    wait(pending, true, limit);
    pending.iter().all(|one| one.is_done())
}

fn wait(pending: &mut [&mut dyn Pending], all: bool, limit: Duration) {
    if in_callback() {
        return;
    }
    let under_way = pending.iter_mut().filter(|one| !one.is_done());
    wait_many(under_way.filter_map(|one| one.under_way().0), all, deadline_of(limit));
}
