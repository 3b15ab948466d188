//! State of blocked lock requests.
//!
//! # Concurrency
//! Session threads and the threads `grants` and `locks`. One lock over the waiters, which is not
//! held during a call.

use std::{
    collections::{HashMap, VecDeque},
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
    /// The kernel's number of the request.
    pub(super) unique: u64,
    pub(super) reply: ReplyEmpty,
    pub(super) since: Instant,
    /// True if the request does not queue behind conflicting waiters any more.
    pub(super) insists: bool,
    pub(super) interrupt: Interrupt,
    /// True until the server's reply has reached the requesting thread. Meanwhile no other thread
    /// repeats or answers the request.
    pub(super) asking: bool,
    /// Outcome that has arrived while `asking` is true.
    pub(super) outcome: Option<Result<Locked, rfs_proto::Errno>>,
}

/// A signal of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// The kernel has told of none.
    Nothing,
    /// The kernel has told of one.
    Arrived,
    /// The thread `locks` has tried to end the wait. The wait may begin again at a new session.
    Tried(Instant),
}

/// Numbers of requests whose interrupt came first. The kernel may send the interrupt of a request
/// while another session thread still begins the request. Most numbers are of requests that never
/// wait for a lock, so the oldest ones go.
#[derive(Default)]
pub(super) struct EarlyInterrupts(VecDeque<u64>);

impl EarlyInterrupts {
    /// Far more requests than session threads can have taken and not begun.
    const MAX: usize = 256;

    /// Adds the number of a request.
    pub(super) fn add(&mut self, unique: u64) {
        if self.0.len() == Self::MAX {
            self.0.pop_front();
        }
        self.0.push_back(unique);
    }

    /// Removes the number of a request. Returns false if it was not there.
    pub(super) fn take(&mut self, unique: u64) -> bool {
        let found = self.0.iter().position(|early| *early == unique);
        found.and_then(|at| self.0.remove(at)).is_some()
    }
}

#[derive(Default)]
pub(super) struct State {
    /// Blocked requests by ticket, and requests that may block.
    pub(super) waiters: HashMap<u64, Waiter>,
    /// Interrupts of requests that did not wait when the interrupts arrived.
    pub(super) early: EarlyInterrupts,
    /// Granted locks of files whose pages in the kernel are stale.
    pub(super) stale: Vec<(LockRequest, ReplyEmpty)>,
    /// Time of the last poll for signals.
    pub(super) polled: Option<Instant>,
    /// Number of times that all waiters had to repeat their requests.
    pub(super) rounds: u64,
    pub(super) stop: bool,
}

/// State that session threads and the threads of [`Locks`](super::Locks) share.
pub(super) struct LockWaiters {
    pub(super) client: Arc<Client>,
    pub(super) kernel: KernelLink,
    pub(super) tickets: AtomicU64,
    pub(super) state: Mutex<State>,
    /// Wakes the thread `locks`.
    pub(super) work: Condvar,
}

impl LockWaiters {
    pub(super) fn new(client: Arc<Client>, kernel: KernelLink) -> LockWaiters {
        let (tickets, state, work) = (AtomicU64::new(0), Mutex::default(), Condvar::new());
        LockWaiters { client, kernel, tickets, state, work }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Detects an interrupt that ends a later wait, and a list that grows without bound.
    #[test]
    fn an_early_interrupt_counts_once_and_the_oldest_ones_go() {
        let mut early = EarlyInterrupts::default();
        (0..=EarlyInterrupts::MAX as u64).for_each(|unique| early.add(unique));
        assert_eq!(early.0.len(), EarlyInterrupts::MAX);
        assert!(!early.take(0) && early.take(1) && early.take(EarlyInterrupts::MAX as u64));
        assert!(!early.take(1), "it was taken");
    }
}
