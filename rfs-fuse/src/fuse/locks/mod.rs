//! Blocked lock requests, and work between the grant of a lock and its reply.
//!
//! A blocked lock request occupies no session thread: the server queues it, and grants it later.
//! The thread `grants` receives the grants. The kernel says which waiters have a signal
//! (FUSE_INTERRUPT), and the thread `locks` ends their waits at the server. That thread also drops
//! stale pages of a file before it answers a lock. A session thread must not wait for that drop,
//! because the drop may wait for pages that only a session thread can bring.
//!
//! # Concurrency
//! Session threads, the threads `grants` and `locks`, and threads `confirming`. The waiters
//! ([`lock_waiters`]) and the queue of [`confirmation`] have a lock each. No thread holds both, and
//! none holds one during a call.

mod confirmation;
mod grants;
mod lock_waiters;
mod signals;
mod status_rows;

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use fuser::Errno;
use rdmabox::Cancel;

pub(super) use self::confirmation::RefusedLock;
pub use self::status_rows::{LockWait, LockWaits};
use self::{
    confirmation::Confirmer,
    lock_waiters::{Interrupt, LockWaiters, State, Waiter},
};
use super::{
    background::Background,
    kernel::KernelLink,
    session::{ReplyEmpty, Request},
};
use rfs_client::{Client, ClientError, LockOutcome, LockRequest};

/// The blocked requests of a mount, and their threads. Dropping this ends the threads, and
/// answers waiters with EINTR.
pub(super) struct Locks {
    shared: Arc<LockWaiters>,
    confirmer: Confirmer,
    cancel: Cancel,
    /// Thread `locks`: ends waits, and drops pages of locked files.
    poller: Background,
    /// Thread `grants`: receives grants from the server.
    grants: Background,
}

impl std::fmt::Debug for Locks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Locks")
    }
}

impl Locks {
    pub(super) fn new(client: Arc<Client>, kernel: KernelLink) -> Locks {
        Locks {
            shared: Arc::new(LockWaiters::new(client.clone(), kernel.clone())),
            confirmer: Confirmer::new(client, kernel),
            cancel: Cancel::new(),
            poller: Background::new("locks"),
            grants: Background::new("grants"),
        }
    }

    /// Returns the source for lists of waiting requests.
    pub(super) fn waits(&self) -> LockWaits {
        LockWaits::new(&self.shared)
    }

    /// Continues after `takeovers` processes, whose tickets may still be known to the server.
    pub(super) fn continue_from(&self, takeovers: u64) {
        self.shared.tickets.store(takeovers << 40, Ordering::Relaxed);
    }

    /// Requests a lock that may block. The reply follows when the lock is granted.
    ///
    /// # Errors
    /// The request fails. The caller answers with the error.
    pub(super) fn lock_waiting(
        &self,
        wanted: LockRequest,
        request: &Request,
        reply: ReplyEmpty,
    ) -> Result<(), (ClientError, ReplyEmpty)> {
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        // The outcome may arrive before the server's reply that the request waits.
        let (since, insists, asking, outcome) = (Instant::now(), false, true, None);
        let (tid, unique) = (request.pid(), request.unique());
        let mut rounds = {
            let mut state = self.shared.state.lock();
            let is_early = state.early.take(unique);
            let interrupt = if is_early { Interrupt::Arrived } else { Interrupt::Nothing };
            let waiter = Waiter { wanted, tid, unique, reply, since, insists, interrupt, asking, outcome };
            state.waiters.insert(ticket, waiter);
            state.rounds
        };
        let asked = loop {
            let asked = self.shared.client.locks.lock(&wanted, Some(ticket));
            if !matches!(asked, Ok(LockOutcome::Queued)) || self.shared.waits(ticket, &mut rounds) {
                break asked;
            }
        };
        if let Ok(LockOutcome::Queued) = asked {
            if let Err(e) = self.start_threads() {
                log::error!("cannot start a thread for locks: {e}");
                self.shared.withdraw(ticket);
            }
            return Ok(());
        }
        // If the session has ended, the thread `grants` has answered.
        let Some(Waiter { reply, .. }) = self.shared.take(ticket) else { return Ok(()) };
        match asked {
            Ok(LockOutcome::Locked { void }) => self.answer(wanted, void, reply),
            Ok(LockOutcome::Queued) => {}
            Err(e) => return Err((e, reply)),
        }
        Ok(())
    }

    /// Ends the wait of a request whose caller has a signal, unless the lock is granted first.
    /// Requests that do not wait go on.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut state = self.shared.state.lock();
        let State { waiters, early, .. } = &mut *state;
        match waiters.values_mut().find(|waiter| waiter.unique == unique) {
            Some(waiter) => {
                waiter.interrupt = Interrupt::Arrived;
                self.shared.work.notify_one();
            }
            // It may begin to wait.
            None => early.add(unique),
        }
    }

    /// Has other mounts confirm that they hold the conflicting locks. Then repeats the request
    /// once, and answers.
    pub(super) fn confirm(&self, wanted: LockRequest, refused: RefusedLock) {
        self.confirmer.confirm(wanted, refused);
    }

    /// Answers that a lock is granted. With `stale`, stale pages of the file are dropped first.
    pub(super) fn answer(&self, lock: LockRequest, stale: bool, reply: ReplyEmpty) {
        if !stale {
            return reply.ok();
        }
        if let Err(e) = self.start_poller() {
            log::error!("cannot start a thread for locks: {e}");
            self.shared.client.locks.unlock(&lock).ok();
            return reply.error(Errno::ENOLCK);
        }
        self.shared.state.lock().stale.push((lock, reply));
        self.shared.work.notify_one();
    }

    /// Starts the threads `grants` and `locks`.
    fn start_threads(&self) -> io::Result<()> {
        let (shared, cancel) = (Arc::clone(&self.shared), self.cancel.clone());
        self.grants.start(move || shared.receive_grants(&cancel))?;
        self.start_poller()?;
        self.shared.work.notify_one();
        Ok(())
    }

    fn start_poller(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.poller.start(move || shared.serve_waiters())
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.confirmer.stop();
        self.shared.state.lock().stop = true;
        self.shared.work.notify_one();
        self.grants.join();
        self.poller.join();
        let State { waiters, stale, .. } = std::mem::take(&mut *self.shared.state.lock());
        waiters.into_values().map(|waiter| waiter.reply).for_each(|reply| reply.error(Errno::EINTR));
        stale.into_iter().for_each(|(_, reply)| reply.error(Errno::EINTR));
    }
}
