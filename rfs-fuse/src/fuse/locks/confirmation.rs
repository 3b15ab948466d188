//! Confirmation of locks that refuse a request.
//!
//! A lock whose file was closed may still have its RELEASE on the way. So a [`Confirmer`] has the
//! mount that holds it confirm the lock, and then makes the refused request once more.
//!
//! # Concurrency
//! Up to [`MAX_THREADS`] threads `confirming`, started as needed. One lock over the queue, which
//! is not held during a call.

use std::{collections::VecDeque, sync::Arc, thread};

use fuser::Errno;
use parking_lot::{Condvar, Mutex};

use super::lock_waiters::drop_pages;
use crate::fuse::{
    affinity, convert,
    kernel::KernelLink,
    session::{Lock, ReplyEmpty, ReplyLock},
};
use rfs_client::{Client, LockOutcome, LockRequest};

/// A request that a conflicting lock refuses. The lock's file may be closed already, with its
/// RELEASE on the way.
pub(in crate::fuse) enum RefusedLock {
    /// A lock request that does not block.
    Lock(ReplyEmpty),
    /// A test for a conflicting lock.
    Test(Lock, ReplyLock),
}

impl RefusedLock {
    /// Answers with an error.
    fn fail(self, errno: Errno) {
        match self {
            RefusedLock::Lock(reply) => reply.error(errno),
            RefusedLock::Test(_, reply) => reply.error(errno),
        }
    }
}

/// Maximum number of threads that confirm locks. Each occupies one of the session's calls.
const MAX_THREADS: usize = 3;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(LockRequest, RefusedLock)>,
    threads: usize,
    idle: usize,
    stop: bool,
}

/// The threads that confirm locks of a mount.
pub(super) struct Confirmer(Arc<Shared>);

struct Shared {
    client: Arc<Client>,
    kernel: KernelLink,
    queue: Mutex<Queue>,
    work: Condvar,
}

impl Confirmer {
    pub(super) fn new(client: Arc<Client>, kernel: KernelLink) -> Confirmer {
        Confirmer(Arc::new(Shared { client, kernel, queue: Mutex::default(), work: Condvar::new() }))
    }

    /// Has other mounts confirm that they hold the conflicting locks. Then repeats the request
    /// once, and answers.
    pub(super) fn confirm(&self, wanted: LockRequest, refused: RefusedLock) {
        let mut queue = self.0.queue.lock();
        queue.jobs.push_back((wanted, refused));
        if queue.jobs.len() <= queue.idle || queue.threads == MAX_THREADS {
            self.0.work.notify_one();
            return;
        }
        let shared = Arc::clone(&self.0);
        match thread::Builder::new().name("confirming".into()).spawn(move || shared.run()) {
            Ok(_) => queue.threads += 1,
            Err(e) if queue.threads == 0 => {
                let jobs = std::mem::take(&mut queue.jobs);
                drop(queue);
                log::error!("cannot start a thread for locks: {e}");
                jobs.into_iter().for_each(|(_, refused)| refused.fail(Errno::ENOLCK));
            }
            Err(e) => log::warn!("cannot start another thread that confirms locks: {e}"),
        }
    }

    /// Ends the threads once they have finished their calls.
    pub(super) fn stop(&self) {
        self.0.queue.lock().stop = true;
        self.0.work.notify_all();
    }
}

impl Shared {
    /// Confirms locks until the mount ends.
    fn run(&self) {
        affinity::reset_affinity();
        loop {
            let (wanted, refused) = {
                let mut queue = self.queue.lock();
                loop {
                    if queue.stop {
                        return;
                    }
                    if let Some(job) = queue.jobs.pop_front() {
                        break job;
                    }
                    queue.idle += 1;
                    self.work.wait(&mut queue);
                    queue.idle -= 1;
                }
            };
            if let Err(e) = self.client.locks.confirm_locks(wanted.ino) {
                log::debug!("locks of inode {} are not confirmed: {e}", wanted.ino);
            }
            self.repeat_refused(&wanted, refused);
        }
    }

    fn repeat_refused(&self, wanted: &LockRequest, refused: RefusedLock) {
        match refused {
            RefusedLock::Lock(reply) => match self.client.locks.lock(wanted, None) {
                Ok(LockOutcome::Locked { void: false }) => reply.ok(),
                Ok(_) => drop_pages(&self.client, &self.kernel, wanted, reply),
                Err(e) => reply.error(convert::errno(e.errno())),
            },
            RefusedLock::Test(lock, reply) => match self.client.locks.test_lock(wanted) {
                Ok(None) => reply.locked(lock.start, lock.end, convert::F_UNLCK, 0),
                Ok(Some(held)) => {
                    let typ = if held.exclusive { convert::F_WRLCK } else { convert::F_RDLCK };
                    let last = held.range.last.min(convert::OFFSET_MAX);
                    reply.locked(held.range.first, last, typ, held.pid);
                }
                Err(e) => reply.error(convert::errno(e.errno())),
            },
        }
    }
}
