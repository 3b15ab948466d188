//! Locks that outlive the server: what is told to the log, and what is made of it.
//!
//! Only locks that are held are kept. Who waits asks again.

use rfs_proto::{LockClass, LockKind, LockRange};

use super::{Locks, Owner, held::Lock};
use crate::durable::op::Locked;

fn locked(lock: &Lock, kind: LockKind) -> Locked {
    let &Lock { owner, class, range, pid, .. } = lock;
    Locked { owner, class, kind, range, pid }
}

impl Locks {
    /// Has changes noted from now on.
    pub fn begin_noting(&mut self) {
        self.noted = Some(Vec::new());
    }

    /// There is room for so many in the log.
    pub fn limit_to(&mut self, most: usize) {
        self.most = Some(most);
    }

    /// What has changed since this was asked last, in order: inodes, and what is locked of them now.
    pub fn take_noted(&mut self) -> Vec<(u64, Locked)> {
        self.noted.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// All locks that are held.
    pub fn held(&self) -> impl Iterator<Item = (u64, Locked)> {
        let of = |(&ino, file): (&u64, &'_ super::File)| {
            let all: Vec<(u64, Locked)> =
                file.held.iter().map(|lock| (ino, locked(lock, lock.kind()))).collect();
            all
        };
        self.files.iter().flat_map(of)
    }

    /// The inodes that are locked.
    pub fn locked_inodes(&self) -> impl Iterator<Item = u64> {
        self.files.keys().copied()
    }

    pub(super) fn note(&mut self, ino: u64, lock: &Lock, kind: LockKind) {
        if let Some(noted) = &mut self.noted {
            noted.push((ino, locked(lock, kind)));
        }
    }

    /// An owner has nothing locked of an inode any more.
    pub(super) fn drop_owner(&mut self, owner: Owner, ino: u64) {
        for class in [LockClass::Record, LockClass::Flock] {
            let all = Lock { owner, class, exclusive: false, range: LockRange::ALL, pid: 0 };
            self.note(ino, &all, LockKind::Unlock);
        }
        self.change(owner, ino, |file| file.held.drop_owner(owner));
    }

    /// It was so once, and is so again. Nobody waits.
    pub fn restore(&mut self, ino: u64, locked: &Locked) {
        let &Locked { owner, class, kind, range, pid } = locked;
        let lock = Lock { owner, class, exclusive: kind == LockKind::Exclusive, range, pid };
        self.change(owner, ino, |file| match kind {
            LockKind::Unlock => file.held.give_up(&lock),
            LockKind::Shared | LockKind::Exclusive => file.held.take(lock),
        });
    }

    /// A session has nothing locked of an inode. Nobody waits.
    pub fn forget(&mut self, session: u64, ino: u64) {
        self.retain_in(ino, |owner| owner.0 != session);
    }

    /// A session has nothing locked. Nobody waits.
    pub fn forget_session(&mut self, session: u64) {
        self.retain(|of, _| of != session);
    }

    /// Keeps the locks of those sessions that may have some of an inode. Nobody waits.
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
