//! File lock requests, and the grants that blocked requests wait for.
//!
//! # Concurrency
//! As the dispatcher. A blocked request occupies no thread. The thread that releases a lock sends
//! the grant after its own transaction. The grant locks the shard of the waiter's inode, which may
//! be a different shard.

use rfs_proto::{Errno, LockKind, LockRange, Locked, Reply, Request};

use crate::{
    dispatch::{
        state::shards::Mode,
        transaction::{
            call::Call,
            view::{View, WriteView},
        },
    },
    locks::{LockOutcome, LockRequest, Locks, MAX_LOCKS},
};

impl Call<'_> {
    pub(in crate::dispatch) fn answer_locks(
        &self,
        session: u64,
        request: Request<'_>,
    ) -> Result<Reply, Errno> {
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
    pub(in crate::dispatch) fn granted(&mut self, session: u64, ino: u64) -> Result<Locked, Errno> {
        let visits = self.visit(session, ino)?;
        Ok(Locked { visits, alone: self.open_files(ino).others(session, ino).is_empty() })
    }
}
