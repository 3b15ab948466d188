//! A thread that does something at intervals, until its owner is dropped.
//!
//! # Concurrency
//! The owner starts and joins the thread. No locks.

use std::{
    io,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{Builder, JoinHandle},
    time::Duration,
};

/// The action after a turn of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The next turn, after this time.
    After(Duration),
    /// Nothing.
    End,
}

/// The thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub(super) struct RenewalThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RenewalThread {
    /// Starts a thread whose first turn is after `first`.
    ///
    /// # Errors
    /// The operating system has no thread.
    pub(super) fn start(
        name: &str,
        first: Duration,
        mut turn: impl FnMut() -> Turn + Send + 'static,
    ) -> io::Result<RenewalThread> {
        let (stop, stopped) = channel();
        let work = move || {
            let mut next = Turn::After(first);
            while let Turn::After(pause) = next {
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                next = turn();
            }
        };
        let thread = Builder::new().name(name.into()).spawn(work)?;
        Ok(RenewalThread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for RenewalThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that renews a lease in etcd panicked");
        }
    }
}
