//! Requests about locks, and what those who wait for one are told.
//!
//! Threading: as the dispatcher. Nobody waits here: who does is told by whoever makes room for him.

use rfs_proto::{Errno, Granted, LockKind, LockRange, Locked, Reply, Request};

use super::{Dispatcher, Outcome, Promise, Sender, call::Call, meta::Meta, outcome::Debt};
use crate::locks::{Asked, MAX_LOCKS, Wish};

impl Call<'_> {
    pub(super) fn answer_locks(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        self.locked(|meta| match request {
            Request::Lock { ino, owner, class, kind, range, pid, ticket } => {
                check(meta, session, ino, range)?;
                if ticket.is_some() && meta.grants.untold(session) >= MAX_LOCKS {
                    return Err(Errno::ENOLCK);
                }
                let wish = Wish { owner: (session, owner), class, range, pid };
                match (meta.locks.set(ino, wish, kind, ticket)?, kind) {
                    (Asked::Waits, _) => Ok(Reply::Waits),
                    (Asked::Done, LockKind::Unlock) => Ok(Reply::Done),
                    (Asked::Done, LockKind::Shared | LockKind::Exclusive) => {
                        meta.granted(session, ino).map(Reply::Locked)
                    }
                }
            }
            Request::StopWaiting { ticket } => waits(meta.locks.stop_waiting((session, ticket))),
            Request::Insist { ticket } => waits(meta.locks.insist((session, ticket))),
            Request::TestLock { ino, owner, class, exclusive, range } => {
                check(meta, session, ino, range)?;
                let wish = Wish { owner: (session, owner), class, range, pid: 0 };
                let found = meta.locks.conflict(ino, wish, exclusive);
                // Process numbers of another machine mean nothing.
                Ok(Reply::Conflict(found.map(|(holder, mut held)| {
                    held.pid = if holder == session { held.pid } else { 0 };
                    held
                })))
            }
            // The others are handled elsewhere.
            _ => Err(Errno::ENOSYS),
        })
    }
}

/// The reply about a ticket that somebody `was` waiting under.
fn waits(was: bool) -> Result<Reply, Errno> {
    if was { Ok(Reply::Done) } else { Err(Errno::ENOENT) }
}

fn check(meta: &Meta, session: u64, ino: u64, range: LockRange) -> Result<(), Errno> {
    match () {
        () if !meta.leases.holds(session, ino) => Err(Errno::EBADF),
        () if range.first > range.last => Err(Errno::EINVAL),
        () => Ok(()),
    }
}

impl Dispatcher {
    /// What became of the locks that a session waits for, now or when there is something.
    pub(super) fn answer_grants(&self, session: u64) -> Outcome {
        self.locked(|meta| match meta.grants.next(session) {
            Some(granted) => Outcome::Now(Reply::Grants(granted)),
            None => Outcome::Later(Promise(Debt::Grants(session))),
        })
    }
}

impl Meta {
    /// A session has got a lock.
    fn granted(&mut self, session: u64, ino: u64) -> Result<Locked, Errno> {
        let visits = self.visit(session, ino)?;
        Ok(Locked { visits, alone: self.leases.others(session, ino).is_empty() })
    }

    /// Tells those who waited for locks what has become of that in the step under way.
    pub(super) fn tell_of_locks(&mut self) {
        for answer in self.locks.take_answers() {
            let (session, ticket) = answer.ticket;
            let outcome = answer.outcome.and_then(|()| self.granted(session, answer.ino));
            if self.sessions.is_attached(session) {
                self.grants.push(session, Granted { ticket, outcome });
                self.tell_granted(session);
            }
        }
    }

    /// Tells a session what became of its locks, if it waits for that.
    fn tell_granted(&mut self, session: u64) {
        if let Some((sender, granted)) = self.grants.answer(session) {
            self.due.push((sender, Reply::Grants(granted)));
        }
    }

    /// A session asks for what becomes of its locks.
    pub(super) fn asks_for_grants(&mut self, session: u64, sender: Sender) {
        if !self.sessions.is_attached(session) {
            return self.due.push((sender, Reply::Error(Errno::EPROTO)));
        }
        let before = self.grants.wait(session, sender);
        self.due.extend(before.map(|sender| (sender, Reply::Error(Errno::EINTR))));
        self.tell_granted(session);
    }

    /// A session asks for nothing any more.
    pub(super) fn end_grants(&mut self, session: u64) {
        let asker = self.grants.end(session);
        self.due.extend(asker.map(|sender| (sender, Reply::Error(Errno::EPROTO))));
    }
}
