//! Grants of the server: answers waiters, and repeats their requests at a new session.
//!
//! # Concurrency
//! The thread `grants`, and session threads whose requests wait.

use fuser::Errno;
use rdmabox::{Cancel, RequestError};
use rfs_proto::Granted;

use super::lock_waiters::{LockWaiters, Waiter};
use crate::fuse::convert;
use rfs_client::{ClientError, LockOutcome, LockRequest};

impl LockWaiters {
    /// Handles the server's reply that a request waits. Returns false if the reply may come from a
    /// previous server: the thread repeats the request.
    pub(super) fn waits(&self, ticket: u64, rounds: &mut u64) -> bool {
        let mut state = self.state.lock();
        let again = *rounds != state.rounds;
        *rounds = state.rounds;
        let Some(waiter) = state.waiters.get_mut(&ticket) else { return true };
        let outcome = waiter.outcome.take();
        waiter.asking = again;
        drop(state);
        if let Some(outcome) = outcome.filter(|_| !again) {
            self.granted(Granted { ticket, outcome });
        }
        !again
    }

    /// Withdraws a request whose grant no thread could receive.
    pub(super) fn withdraw(&self, ticket: u64) {
        let Some(Waiter { wanted, reply, .. }) = self.take(ticket) else { return };
        if !matches!(self.client.locks.stop_waiting(ticket), Ok(true)) {
            self.client.locks.unlock(&wanted).ok();
        }
        reply.error(Errno::ENOLCK);
    }

    /// Receives grants and answers waiters, until the session or the mount ends.
    pub(super) fn receive_grants(&self, cancel: &Cancel) {
        let end = loop {
            match self.client.locks.grants(cancel) {
                Ok(Some(granted)) => granted.into_iter().for_each(|granted| self.granted(granted)),
                // The server has restarted, or the session is new. It does not know the waiters.
                Ok(None) => self.repeat_requests(),
                Err(ClientError::Request(RequestError::Disconnected)) if self.client.is_connected() => {
                    self.repeat_requests();
                }
                Err(e) => break e,
            }
        };
        if cancel.is_cancelled() {
            return;
        }
        // The session has ended, and all locks with it.
        if self.client.is_connected() {
            log::error!("cannot receive grants of locks: {end}");
            self.client.close_session();
        }
        let waiters = std::mem::take(&mut self.state.lock().waiters);
        waiters.into_values().for_each(|waiter| waiter.reply.error(convert::errno(end.errno())));
    }

    /// Repeats the requests of all waiters.
    fn repeat_requests(&self) {
        let all: Vec<(u64, LockRequest)> = {
            let mut state = self.state.lock();
            state.rounds += 1;
            // A thread that is asking repeats its request itself. Two requests at a time could take
            // the lock again after its release.
            let heard = state.waiters.iter().filter(|(_, waiter)| !waiter.asking);
            heard.map(|(&ticket, waiter)| (ticket, waiter.wanted)).collect()
        };
        for (ticket, wanted) in all {
            let asked = self.client.locks.lock(&wanted, Some(ticket));
            if let Ok(LockOutcome::Queued) = asked {
                // If the waiter was interrupted meanwhile, the server did not know the request. The
                // request is withdrawn now.
                let waits = self.state.lock().waiters.contains_key(&ticket);
                if !waits && !matches!(self.client.locks.stop_waiting(ticket), Ok(true)) {
                    self.client.locks.unlock(&wanted).ok();
                }
                continue;
            }
            let Some(Waiter { wanted, reply, .. }) = self.take(ticket) else {
                // The waiter was interrupted.
                if asked.is_ok() {
                    self.client.locks.unlock(&wanted).ok();
                }
                continue;
            };
            match asked {
                Ok(LockOutcome::Locked { void: true }) => self.drop_pages(&wanted, reply),
                Ok(_) => reply.ok(),
                Err(e) => reply.error(convert::errno(e.errno())),
            }
        }
    }

    fn granted(&self, Granted { ticket, outcome }: Granted) {
        let mut state = self.state.lock();
        if let Some(waiter) = state.waiters.get_mut(&ticket).filter(|waiter| waiter.asking) {
            waiter.outcome = Some(outcome);
            return;
        }
        let Some(Waiter { wanted, reply, .. }) = state.waiters.remove(&ticket) else {
            return log::debug!("a grant of a lock without a waiter");
        };
        drop(state);
        match self.client.locks.granted(&wanted, outcome) {
            Ok(true) => self.drop_pages(&wanted, reply),
            Ok(false) => reply.ok(),
            Err(e) => reply.error(convert::errno(e.errno())),
        }
    }
}
