//! Persistence of locks: changes that [`Locks`] reports to the log, and restoration by recovery.
//!
//! Only held locks are persistent. A client repeats the requests that waited.
//!
//! # Concurrency
//! None; the caller holds the lock that protects [`Locks`].

use rfs_proto::{LockClass, LockKind, LockRange};

use super::{
    Locks,
    held_locks::{Lock, Locked, Owner},
};

fn locked(lock: &Lock, kind: LockKind) -> Locked {
    let &Lock { owner, class, range, pid, .. } = lock;
    Locked { owner, class, kind, range, pid }
}

impl Locks {
    /// Records all changes of held locks from now on.
    pub fn record_changes(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// Limits the number of locks and waiters to the room in the log.
    pub fn limit_to(&mut self, limit: usize) {
        self.limit = Some(limit);
    }

    /// Returns the changes since the last call, in order: inode and new lock state of a range.
    pub fn take_changes(&mut self) -> Vec<(u64, Locked)> {
        self.changes.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// Returns all held locks.
    pub fn held(&self) -> impl Iterator<Item = (u64, Locked)> {
        let of = |(&ino, file): (&u64, &'_ super::File)| {
            let all: Vec<(u64, Locked)> =
                file.held.iter().map(|lock| (ino, locked(lock, lock.kind()))).collect();
            all
        };
        self.files.iter().flat_map(of)
    }

    /// Returns the inodes with locks or waiters.
    pub fn locked_inodes(&self) -> impl Iterator<Item = u64> {
        self.files.keys().copied()
    }

    pub(super) fn note(&mut self, ino: u64, lock: &Lock, kind: LockKind) {
        if let Some(changes) = &mut self.changes {
            changes.push((ino, locked(lock, kind)));
        }
    }

    /// Drops all locks of an owner on an inode.
    pub(super) fn drop_owner(&mut self, owner: Owner, ino: u64) {
        for class in [LockClass::Record, LockClass::Flock] {
            let all = Lock { owner, class, exclusive: false, range: LockRange::ALL, pid: 0 };
            self.note(ino, &all, LockKind::Unlock);
        }
        self.change(owner, ino, |file| file.held.drop_owner(owner));
    }

    /// Restores a lock from the log. Requires that there are no waiters.
    pub fn restore(&mut self, ino: u64, locked: &Locked) {
        let &Locked { owner, class, kind, range, pid } = locked;
        let lock = Lock { owner, class, exclusive: kind == LockKind::Exclusive, range, pid };
        self.change(owner, ino, |file| match kind {
            LockKind::Unlock => file.held.release(&lock),
            LockKind::Shared | LockKind::Exclusive => file.held.insert(lock),
        });
    }

    /// Drops a session's locks on an inode. Requires that there are no waiters.
    pub fn forget(&mut self, session: u64, ino: u64) {
        self.retain_in(ino, |owner| owner.0 != session);
    }

    /// Drops a session's locks. Requires that there are no waiters.
    pub fn forget_session(&mut self, session: u64) {
        self.retain(|of, _| of != session);
    }

    /// Keeps only locks whose session and inode satisfy `may`. Requires that there are no waiters.
    pub fn retain(&mut self, may: impl Fn(u64, u64) -> bool) {
        let inos: Vec<u64> = self.locked_inodes().collect();
        inos.into_iter().for_each(|ino| self.retain_in(ino, |owner| may(owner.0, ino)));
    }

    fn retain_in(&mut self, ino: u64, keep: impl Fn(Owner) -> bool) {
        let Some(file) = self.files.get(&ino) else { return };
        let gone: Vec<Owner> =
            file.held.iter().map(|lock| lock.owner).filter(|&owner| !keep(owner)).collect();
        for owner in gone {
            self.change(owner, ino, |file| file.held.drop_owner(owner));
        }
    }
}
