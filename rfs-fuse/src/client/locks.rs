//! Locks that all mounts of a server know of, and what they say about the caller's caches.

use rfs_proto::{HeldLock, LockClass, LockKind, LockRange, Locked, Reply, Request};

use super::{Client, ClientError, names::wrong_kind};

/// A lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// Inode, which is open here.
    pub ino: u64,
    /// The open file that it is asked through.
    pub handle: u64,
    /// Whose it is: the same number, the same owner.
    pub owner: u64,
    /// flock or fcntl.
    pub class: LockClass,
    /// Shared, exclusive or none.
    pub kind: LockKind,
    /// Where.
    pub range: LockRange,
    /// Process, for others to see.
    pub pid: u32,
}

/// A lock that may be there, and has to go with its owner and with the open file that it was asked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MayHold {
    handle: u64,
    owner: u64,
    class: LockClass,
}

impl Client {
    /// Locks a range. True if another client may have changed the file since this was asked last, so that whatever the caller
    /// keeps of it is void. EAGAIN if somebody is in the way; with `wait` the server knows that the owner will ask
    /// again until it has the lock or [stops waiting](Self::stop_waiting), and answers EDEADLK where that would be in vain.
    pub fn lock(&self, wanted: &LockRequest, wait: bool) -> Result<bool, ClientError> {
        let LockRequest { ino, handle, owner, class, kind, range, pid } = *wanted;
        let inode = self.opened(ino)?;
        {
            let mut may_hold = inode.may_hold.lock();
            let new = MayHold { handle, owner, class };
            if !may_hold.contains(&new) {
                may_hold.push(new);
            }
        }
        match self.call(&Request::Lock { ino, owner, class, kind, range, pid, wait })? {
            Reply::Locked(Locked { visits, alone }) => {
                let mut as_of = inode.pages_as_of.lock();
                let void = !self.alone && (!alone || *as_of != Some(visits)) && !inode.pages.are_good();
                *as_of = alone.then_some(visits);
                // What this client knows of the size is no fresher.
                inode.size.lock().distrust();
                Ok(void)
            }
            _ => wrong_kind(),
        }
    }

    /// Unlocks a range, after publishing what was written.
    pub fn unlock(&self, wanted: &LockRequest) -> Result<(), ClientError> {
        let LockRequest { ino, owner, class, range, pid, .. } = *wanted;
        self.flush(ino)?;
        self.call_done(&Request::Lock {
            ino,
            owner,
            class,
            kind: LockKind::Unlock,
            range,
            pid,
            wait: false,
        })?;
        if range == LockRange::ALL
            && let Some(inode) = self.inodes.get(ino)
        {
            inode.may_hold.lock().retain(|held| (held.owner, held.class) != (owner, class));
        }
        Ok(())
    }

    /// The owner no longer waits.
    pub fn stop_waiting(&self, owner: u64) -> Result<(), ClientError> {
        self.call_done(&Request::StopWaiting { owner })
    }

    /// A lock that would be in the way.
    pub fn test_lock(&self, wanted: &LockRequest) -> Result<Option<HeldLock>, ClientError> {
        let LockRequest { ino, owner, class, kind, range, .. } = *wanted;
        let exclusive = kind == LockKind::Exclusive;
        match self.call(&Request::TestLock { ino, owner, class, exclusive, range })? {
            Reply::Conflict(found) => Ok(found),
            _ => wrong_kind(),
        }
    }

    /// An owner closed a file: its record locks there go. True if there may have been any.
    pub fn unlock_owner(&self, ino: u64, owner: u64) -> Result<bool, ClientError> {
        self.unlock_those(ino, |held| (held.owner, held.class) == (owner, LockClass::Record))
    }

    /// An open file is closed for good: all locks that were taken through it go. True if there may have been any.
    pub fn unlock_handle(&self, ino: u64, handle: u64) -> Result<bool, ClientError> {
        self.unlock_those(ino, |held| held.handle == handle)
    }

    fn unlock_those(&self, ino: u64, hit: impl Fn(&MayHold) -> bool) -> Result<bool, ClientError> {
        let Some(inode) = self.inodes.get(ino) else { return Ok(false) };
        let mut gone: Vec<MayHold> = Vec::new();
        inode.may_hold.lock().retain(|held| {
            let hit = hit(held);
            // Unlocking asks for an owner and a class, whatever open files it was.
            if hit && !gone.iter().any(|g| (g.owner, g.class) == (held.owner, held.class)) {
                gone.push(*held);
            }
            !hit
        });
        let mut outcome = Ok(!gone.is_empty());
        for MayHold { handle, owner, class } in gone {
            let (kind, range) = (LockKind::Unlock, LockRange::ALL);
            if let Err(e) = self.unlock(&LockRequest { ino, handle, owner, class, kind, range, pid: 0 }) {
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    }
}
