//! Requests about locks.
//!
//! Threading: as the dispatcher. Nobody waits here: who wants to wait asks again.

use rfs_proto::{Errno, LockKind, LockRange, Locked, Reply, Request};

use super::{call::Call, meta::View, shards::Mode};
use crate::locks::Wish;

impl Call<'_> {
    pub(super) fn answer_locks(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Lock { ino, owner, class, kind, range, pid, wait } => self.locked(&[ino], |meta| {
                check(meta, session, ino, range)?;
                let wish = Wish { owner: (session, owner), class, range, pid };
                meta.namespace.get_mut(ino)?.was_locked |= kind != LockKind::Unlock;
                meta.locks().set(ino, wish, kind, wait)?;
                match kind {
                    LockKind::Unlock => Ok(Reply::Done),
                    LockKind::Shared | LockKind::Exclusive => {
                        let visits = meta.visit(session, ino)?;
                        let alone = meta.leases(ino).others(session, ino).is_empty();
                        Ok(Reply::Locked(Locked { visits, alone }))
                    }
                }
            }),
            Request::StopWaiting { owner } => {
                self.store.locks.lock().stop_waiting((session, owner));
                Ok(Reply::Done)
            }
            Request::TestLock { ino, owner, class, exclusive, range } => self.look(&[ino], |look| {
                check(look, session, ino, range)?;
                let wish = Wish { owner: (session, owner), class, range, pid: 0 };
                let found = look.locks().conflict(ino, wish, exclusive);
                // Process numbers of another machine mean nothing.
                Ok(Reply::Conflict(found.map(|(holder, mut held)| {
                    held.pid = if holder == session { held.pid } else { 0 };
                    held
                })))
            }),
            // The others are handled elsewhere.
            _ => Err(Errno::ENOSYS),
        }
    }
}

fn check<M: Mode>(view: &View<'_, M>, session: u64, ino: u64, range: LockRange) -> Result<(), Errno> {
    match () {
        () if !view.leases(ino).holds(session, ino) => Err(Errno::EBADF),
        () if range.first > range.last => Err(Errno::EINVAL),
        () => Ok(()),
    }
}
