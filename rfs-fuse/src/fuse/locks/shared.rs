//! State of blocked lock requests.
//!
//! # Concurrency
//! Session threads and the threads `grants` and `locks`. One lock over the waiters, which is not
//! held during a call.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::Instant,
};

use fuser::Errno;
use parking_lot::{Condvar, Mutex};
use rfs_proto::Locked;

use crate::fuse::{
    kernel::{KernelLink, Part},
    session::ReplyEmpty,
};
use rfs_client::{Client, LockRequest};

/// A blocked lock request.
pub(super) struct Waiter {
    pub(super) wanted: LockRequest,
    /// The thread that waits.
    pub(super) tid: u32,
    pub(super) reply: ReplyEmpty,
    pub(super) since: Instant,
    /// True if the request does not queue behind conflicting waiters any more.
    pub(super) insists: bool,
    /// True until the server's reply has reached the requesting thread. Meanwhile no other thread
    /// repeats or answers the request.
    pub(super) asking: bool,
    /// Outcome that has arrived while `asking` is true.
    pub(super) outcome: Option<Result<Locked, rfs_proto::Errno>>,
}

#[derive(Default)]
pub(super) struct State {
    /// Blocked requests by ticket, and requests that may block.
    pub(super) waiters: HashMap<u64, Waiter>,
    /// Granted locks of files whose pages in the kernel are stale.
    pub(super) stale: Vec<(LockRequest, ReplyEmpty)>,
    /// Number of times that all waiters had to repeat their requests.
    pub(super) rounds: u64,
    pub(super) stop: bool,
}

/// State that session threads and the threads of [`Locks`](super::Locks) share.
pub(super) struct Shared {
    pub(super) client: Arc<Client>,
    pub(super) kernel: KernelLink,
    pub(super) tickets: AtomicU64,
    pub(super) state: Mutex<State>,
    /// Wakes the thread `locks`.
    pub(super) work: Condvar,
}

impl Shared {
    pub(super) fn new(client: Arc<Client>, kernel: KernelLink) -> Shared {
        let (tickets, state, work) = (AtomicU64::new(0), Mutex::default(), Condvar::new());
        Shared { client, kernel, tickets, state, work }
    }

    /// Removes a waiter and returns it, or `None` if another thread has taken it.
    pub(super) fn take(&self, ticket: u64) -> Option<Waiter> {
        self.state.lock().waiters.remove(&ticket)
    }

    /// Has the kernel drop pages of a locked file, and answers the lock request.
    pub(super) fn drop_pages(&self, lock: &LockRequest, reply: ReplyEmpty) {
        drop_pages(&self.client, &self.kernel, lock, reply);
    }
}

/// Has the kernel drop pages of a locked file, and answers the lock request.
pub(super) fn drop_pages(client: &Client, kernel: &KernelLink, lock: &LockRequest, reply: ReplyEmpty) {
    // Pages and attributes. If that fails, stale pages remain, so the lock is not granted.
    if let Err(e) = kernel.drop_inode(lock.ino, Part::PagesFrom(0)) {
        log::warn!("cannot drop the pages of inode {}: {e}", lock.ino);
        client.locks.unlock(lock).ok();
        return reply.error(Errno::EIO);
    }
    reply.ok();
}
