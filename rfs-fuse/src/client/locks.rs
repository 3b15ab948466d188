//! Locks that all mounts of a server know of, and what they say about the caller's caches.

use std::sync::atomic::Ordering;

use rdmabox::{Cancel, RequestError};
use rfs_proto::{
    Errno, Granted, HeldLock, LockClass, LockKind, LockRange, Locked, Reply, Request, decode_reply,
    encode_request,
};

use super::{
    Client, ClientError,
    data::guarded_since,
    holdings::{Claim, Holding},
    inode::Inode,
    keeping::Effect,
    names::wrong_kind,
};

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

/// What asking for a lock led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is there.
    Locked {
        /// Another client may have changed the file since a lock was got here last, so that whatever the caller keeps of it is void.
        void: bool,
    },
    /// What becomes of it comes with [`Client::grants`].
    Waits,
}

impl Client {
    /// Locks a range. EAGAIN if somebody is in the way; with a `ticket`, a number that nothing else waits under, it waits
    /// then, or is EDEADLK where that would be in vain.
    pub fn lock(&self, wanted: &LockRequest, ticket: Option<u64>) -> Result<Asked, ClientError> {
        let LockRequest { ino, owner, class, kind, range, pid, .. } = *wanted;
        let inode = self.opened(ino)?;
        let claim = inode.may_hold.lock().asks(holding(wanted));
        let reply = self.call(&Request::Lock { ino, owner, class, kind, range, pid, ticket });
        let refused = match &reply {
            // Nothing that was not there before.
            Ok(Reply::Waits) | Err(ClientError::Errno(Errno::EAGAIN | Errno::EDEADLK | Errno::ENOLCK)) => {
                true
            }
            // Where it failed in another way it may have been done all the same.
            _ => false,
        };
        inode.may_hold.lock().answered(claim, !refused);
        match reply? {
            Reply::Locked(locked) => Ok(Asked::Locked { void: self.locked(ino, locked)? }),
            Reply::Waits => Ok(Asked::Waits),
            _ => wrong_kind(),
        }
    }

    /// A lock is there. True if whatever the caller keeps of the file is void.
    fn locked(&self, ino: u64, Locked { visits, alone }: Locked) -> Result<bool, ClientError> {
        let inode = self.opened(ino)?;
        let mut as_of = inode.pages_as_of.lock();
        let void = !self.alone && (!alone || *as_of != Some(visits)) && !inode.pages.are_good();
        *as_of = alone.then_some(visits);
        // What this client knows of the size is no fresher.
        inode.size.lock().distrust();
        Ok(void)
    }

    /// What became of a lock that was waited for: as [`Asked::Locked::void`], or why it is not there.
    pub fn granted(&self, wanted: &LockRequest, outcome: Result<Locked, Errno>) -> Result<bool, ClientError> {
        let locked = outcome?;
        self.opened(wanted.ino)?.may_hold.lock().has(holding(wanted));
        self.locked(wanted.ino, locked)
    }

    /// Waits until something became of locks that are waited for, or until it is cancelled: each of them once. `None`: the server knows of
    /// nobody who waits, and is to be asked again. One thread at a time.
    pub fn grants(&self, cancel: &Cancel) -> Result<Option<Vec<Granted>>, ClientError> {
        let (mut out, mut back) = (Vec::new(), Vec::new());
        encode_request(&Request::Grants, &mut out);
        self.remote.call_waiting(self.remote.era(), &out, &mut back, cancel)?;
        match decode_reply(&back)? {
            Reply::Grants(granted) => Ok(Some(granted)),
            Reply::AskAgain => Ok(None),
            Reply::Error(errno) => Err(errno.into()),
            _ => wrong_kind(),
        }
    }

    /// Unlocks a range, after publishing what was written.
    pub fn unlock(&self, wanted: &LockRequest) -> Result<(), ClientError> {
        let LockRequest { ino, owner, class, range, pid, .. } = *wanted;
        self.flush(ino)?;
        let inode = self.inodes.get(ino).filter(|_| range == LockRange::ALL);
        let claims = inode.as_ref().map(|inode| inode.may_hold.lock().gives_up(owner, class));
        let kind = LockKind::Unlock;
        let unlocked = self.call_done(&Request::Lock { ino, owner, class, kind, range, pid, ticket: None });
        if let (Some(inode), Some(claims)) = (inode, claims) {
            let mut may_hold = inode.may_hold.lock();
            claims.into_iter().for_each(|claim: Claim| may_hold.answered(claim, unlocked.is_err()));
        }
        unlocked
    }

    /// Waits no more under this ticket. False if that came too late: what became of it is among the [grants](Self::grants).
    pub fn stop_waiting(&self, ticket: u64) -> Result<bool, ClientError> {
        self.ticket_done(&Request::StopWaiting { ticket })
    }

    /// Waits no more for others who wait. False as with [`stop_waiting`](Self::stop_waiting).
    pub fn insist(&self, ticket: u64) -> Result<bool, ClientError> {
        self.ticket_done(&Request::Insist { ticket })
    }

    fn ticket_done(&self, request: &Request<'_>) -> Result<bool, ClientError> {
        match self.call_done(request) {
            Ok(()) => Ok(true),
            Err(ClientError::Errno(Errno::ENOENT)) => Ok(false),
            Err(e) => Err(e),
        }
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

    /// An owner closed a file: its record locks there go.
    pub fn unlock_owner(&self, ino: u64, owner: u64) -> Result<(), ClientError> {
        self.unlock_those(ino, |held| (held.owner, held.class) == (owner, LockClass::Record))
    }

    /// EIO if a lock was had through an open file that is lost: what is done there would be taken for guarded.
    pub fn check_locks(&self, ino: u64, handle: u64) -> Result<(), ClientError> {
        if !self.inodes.has_lost_locks() {
            return Ok(());
        }
        match self.inodes.get(ino) {
            Some(inode) if inode.is_severed(handle) => Err(Errno::EIO.into()),
            _ => Ok(()),
        }
    }

    /// Carries out a request about open files that was made in the era `since`, and that locks of these files may guard.
    ///
    /// # Errors
    /// EIO if such a lock was lost when an era after that began. The request is not carried out in a later era then.
    pub(super) fn call_guarded(
        &self,
        inodes: &[&Inode],
        since: u32,
        request: &Request<'_>,
    ) -> Result<Reply, ClientError> {
        // In this order: what is held at the first look, and lost before the second, shows in the third.
        let may_hold = inodes.iter().any(|inode| !inode.may_hold.lock().is_empty());
        let era = self.remote.era_in_use();
        let guarded = || inodes.iter().try_for_each(|inode| guarded_since(inode, since));
        guarded()?;
        if !may_hold {
            return self.call(request);
        }
        match self.call_in(era, request) {
            Err(e @ ClientError::Request(RequestError::Disconnected)) => guarded().and(Err(e)),
            outcome => outcome,
        }
    }

    /// An open file is closed for good: all locks that were taken through it go.
    pub fn unlock_handle(&self, ino: u64, handle: u64) -> Result<(), ClientError> {
        let Some(inode) = self.inodes.get(ino) else {
            self.inodes.releases();
            return Ok(());
        };
        inode.forget_severed(handle);
        inode.unlocking.fetch_add(1, Ordering::SeqCst);
        let gone = inode.may_hold.lock().take(|held| held.handle == handle);
        self.inodes.releases();
        let unlocked = self.unlock_all(ino, gone);
        inode.unlocking.fetch_sub(1, Ordering::SeqCst);
        unlocked
    }

    /// An open file is about to be released: announces a call of [`unlock_handle`](Self::unlock_handle).
    pub fn will_release(&self) {
        self.inodes.will_release();
    }

    /// A descriptor of an open file is being closed. It may be the last one.
    pub fn may_close(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.may_hold.lock().may_close(handle);
        }
    }

    /// True if a lock is held here through an open file whose last close may have returned.
    pub fn may_be_closed(&self, ino: u64) -> bool {
        self.inodes.get(ino).is_some_and(|inode| {
            inode.unlocking.load(Ordering::SeqCst) > 0 || inode.may_hold.lock().may_be_closed()
        })
    }

    /// True if a release has begun that gives locks of a file up, and the server has not answered.
    pub fn is_unlocking(&self, ino: u64) -> bool {
        self.inodes.is_releasing()
            || self.inodes.get(ino).is_some_and(|inode| inode.unlocking.load(Ordering::SeqCst) > 0)
    }

    /// Returns when all mounts that have locks of a file have given up those whose files are closed.
    ///
    /// # Errors
    /// That of the call.
    pub fn confirm_locks(&self, ino: u64) -> Result<(), ClientError> {
        let _counted = self.changes().begin(&Effect::default());
        self.call_done(&Request::ConfirmLocks { ino })
    }

    fn unlock_those(&self, ino: u64, hit: impl Fn(&Holding) -> bool) -> Result<(), ClientError> {
        let Some(inode) = self.inodes.get(ino) else { return Ok(()) };
        let gone = inode.may_hold.lock().take(hit);
        self.unlock_all(ino, gone)
    }

    fn unlock_all(&self, ino: u64, mut gone: Vec<Holding>) -> Result<(), ClientError> {
        // Unlocking asks for an owner and a class, whatever open files it was.
        gone.sort_unstable_by_key(|held| (held.owner, held.class == LockClass::Record));
        gone.dedup_by_key(|held| (held.owner, held.class));
        let mut outcome = Ok(());
        for Holding { handle, owner, class } in gone {
            let (kind, range) = (LockKind::Unlock, LockRange::ALL);
            if let Err(e) = self.unlock(&LockRequest { ino, handle, owner, class, kind, range, pid: 0 }) {
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    }
}

fn holding(&LockRequest { handle, owner, class, .. }: &LockRequest) -> Holding {
    Holding { handle, owner, class }
}
