//! Hands new connections to a worker, and wakes it.
//!
//! # Concurrency
//! Any thread posts, one worker takes. The lock is a leaf.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;

/// New connections of a worker.
#[derive(Debug)]
pub(super) struct Mailbox {
    sockets: Mutex<Vec<OwnedFd>>,
    bell: OwnedFd,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Mailbox> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { sockets: Mutex::default(), bell })
    }

    pub(super) fn post(&self, socket: OwnedFd) {
        self.sockets.lock().push(socket);
        self.wake();
    }

    /// Wakes the worker.
    pub(super) fn wake(&self) {
        // The worker is awake already if the number of the bell is too large for another wake.
        if let Err(error) = rustix::io::write(&self.bell, &1_u64.to_ne_bytes())
            && error != rustix::io::Errno::AGAIN
        {
            log::error!("cannot wake a thread of the text protocol: {error}");
        }
    }

    /// Returns the connections that came since the last call.
    pub(super) fn take(&self) -> Vec<OwnedFd> {
        // EAGAIN: another call has taken the number.
        rustix::io::read(&self.bell, &mut [0; 8]).ok();
        std::mem::take(&mut *self.sockets.lock())
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
