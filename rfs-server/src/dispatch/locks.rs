//! File lock requests, and the grants that blocked requests wait for.
//!
//! # Concurrency
//! As the dispatcher. A blocked request occupies no thread. The thread that releases a lock sends
//! the grant after its own transaction, because the grant locks the shard of the waiter's inode,
//! which may be a different shard.

use rfs_proto::{Errno, Granted, LockKind, LockRange, Locked, Reply, Request};
use seeded_faults::{Fault, seeded};

use super::{
    Dispatcher, Outcome, Promise, Sender,
    call::Call,
    locked_inodes::Plan,
    meta::{View, WriteView},
    outcome::DeferredReply,
    shards::Mode,
};
use crate::{
    grants::Grants,
    locks::{LockOutcome, LockRequest, Locks, MAX_LOCKS},
};

impl Call<'_> {
    pub(super) fn answer_locks(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Lock { ino, owner, class, kind, range, pid, ticket } => self.locked(&[ino], |meta| {
                check(meta, session, ino, range)?;
                if ticket.is_some() && self.store.grants.lock().untold(session) >= MAX_LOCKS {
                    return Err(Errno::ENOLCK);
                }
                let request = LockRequest { owner: (session, owner), class, range, pid };
                meta.namespace.inodes_mut().unlogged_mut(ino)?.was_locked |= kind != LockKind::Unlock;
                let store = meta.store;
                let mut locks = store.locks();
                let reply = meta.lock(&mut locks, (session, ino), request, kind, ticket);
                // A blocked request is not logged: the next server asks for it again.
                if let Ok(reply) = reply.as_ref()
                    && *reply != Reply::Waits
                {
                    meta.set_reply(self.number, reply);
                }
                store.log_lock_changes(&mut locks, &mut meta.logged_reply);
                reply
            }),
            Request::StopWaiting { ticket } => {
                waits(self.store.change_locks(|locks| locks.stop_waiting((session, ticket))))
            }
            Request::Insist { ticket } => {
                waits(self.store.change_locks(|locks| locks.insist((session, ticket))))
            }
            Request::TestLock { ino, owner, class, exclusive, range } => self.look(&[ino], |look| {
                check(look, session, ino, range)?;
                let request = LockRequest { owner: (session, owner), class, range, pid: 0 };
                let found = look.locks().conflict(ino, request, exclusive);
                // Process IDs of other hosts have no meaning.
                Ok(Reply::Conflict(found.map(|(holder, mut held)| {
                    held.pid = if holder == session { held.pid } else { 0 };
                    held
                })))
            }),
            Request::ConfirmLocks { ino } => self.locked(&[ino], |meta| {
                check(meta, session, ino, LockRange::ALL)?;
                let holders = meta.store.locks().holders(ino);
                meta.confirm_locks(ino, &holders);
                Ok(Reply::Done)
            }),
            // Other modules handle the other requests.
            _ => Err(Errno::ENOSYS),
        }
    }
}

/// Returns the reply about a ticket. `was` says whether a request was blocked under it.
fn waits(was: bool) -> Result<Reply, Errno> {
    if was { Ok(Reply::Done) } else { Err(Errno::ENOENT) }
}

/// Returns the next grants for a session, if it asks for them and there are any.
fn due_to(grants: &mut Grants<Sender>, session: u64) -> Option<(Sender, Reply)> {
    grants.answer(session).map(|(sender, granted)| (sender, Reply::Grants(granted)))
}

fn check<M: Mode>(view: &View<'_, M>, session: u64, ino: u64, range: LockRange) -> Result<(), Errno> {
    match () {
        () if !view.open_files(ino).holds(session, ino) => Err(Errno::EBADF),
        () if range.first > range.last => Err(Errno::EINVAL),
        () => Ok(()),
    }
}

impl WriteView<'_> {
    fn lock(
        &mut self,
        locks: &mut Locks,
        (session, ino): (u64, u64),
        request: LockRequest,
        kind: LockKind,
        ticket: Option<u64>,
    ) -> Result<Reply, Errno> {
        match (locks.set(ino, request, kind, ticket)?, kind) {
            (LockOutcome::Waits, _) => Ok(Reply::Waits),
            (LockOutcome::Done, LockKind::Unlock) => Ok(Reply::Done),
            (LockOutcome::Done, LockKind::Shared | LockKind::Exclusive) => {
                self.granted(session, ino).map(Reply::Locked)
            }
        }
    }

    /// Describes a lock that a session has got.
    fn granted(&mut self, session: u64, ino: u64) -> Result<Locked, Errno> {
        let visits = self.visit(session, ino)?;
        Ok(Locked { visits, alone: self.open_files(ino).others(session, ino).is_empty() })
    }
}

impl Dispatcher {
    /// Returns the next grants of a session, at once or when there are any.
    pub(super) fn answer_grants(&self, session: u64) -> Outcome {
        if self.sessions.get(session).is_some_and(|session| session.take_ask_again()) {
            return Outcome::Now(Reply::AskAgain);
        }
        match self.store.grants.lock().next(session) {
            Some(granted) => Outcome::Now(Reply::Grants(granted)),
            None => Outcome::Later(Promise(DeferredReply::Grants(session))),
        }
    }

    /// Sends the outcomes of blocked lock requests to their sessions.
    pub(super) fn send_grants(&self) {
        for answer in self.store.take_answers() {
            let (session, ticket) = answer.ticket;
            let Some(waiter) = self.sessions.get(session) else { continue };
            let outcome = answer.outcome.and_then(|()| {
                let granted = |meta: &mut WriteView<'_>| meta.granted(session, answer.ino);
                self.store.transact(Plan::new(&[answer.ino]), Some(&waiter), granted).0
            });
            let mut due = Vec::new();
            {
                let mut grants = self.store.grants.lock();
                // The end of the session clears its queue after this, so nothing is left behind.
                if waiter.is_attached() && !seeded(Fault::WaiterForgotten) {
                    grants.push(session, Granted { ticket, outcome });
                    due.extend(due_to(&mut grants, session));
                }
            }
            self.store.send(due);
        }
    }

    /// Stores the request of a session for grants, and replies if there are any.
    pub(super) fn wait_for_grants(&self, session: u64, sender: Sender) {
        let asker = self.sessions.get(session);
        let mut due = Vec::new();
        {
            let mut grants = self.store.grants.lock();
            if asker.is_some_and(|asker| asker.is_attached()) {
                let before = grants.wait(session, sender);
                due.extend(before.map(|sender| (sender, Reply::Error(Errno::EINTR))));
                due.extend(due_to(&mut grants, session));
            } else {
                due.push((sender, Reply::Error(Errno::EPROTO)));
            }
        }
        self.store.send(due);
    }

    /// Drops the grants of a session that is marked as ended, and ends its request.
    pub(super) fn drop_grants(&self, session: u64) {
        let asker = self.store.grants.lock().end(session);
        self.store.send(asker.map(|sender| (sender, Reply::Error(Errno::EPROTO))).into_iter().collect());
    }
}
