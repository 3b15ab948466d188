//! File locks that are visible to all mounts of a server, and their effect on the caller's
//! caches.
//!
//! The server grants locks. This client records the locks that it may hold, to release them with
//! their owner or handle, and to detect lost ones.
//!
//! # Concurrency
//! Session threads, and one thread in [`Locks::grants`]. The inode's lock `caller` is held briefly,
//! never over a call.

use std::sync::Arc;

use rdmabox::Cancel;
use rfs_proto::{
    Errno, Granted, HeldLock, LockClass, LockKind, LockRange, Locked, Reply, Request, decode_reply,
    encode_request,
};

use crate::{
    cache::changes::Effect,
    error::ClientError,
    inode::{
        Inode,
        locks::held_locks::{Claim, LockKey},
        table::InodeTable,
    },
    metadata::open_files::OpenFiles,
    remote::kept_state::KeptLock,
    remote::{CallOptions, Remote, ReplyWait},
    requests::{
        cache_rules::CacheRules,
        calls::{Calls, wrong_kind},
    },
};

/// A requested lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// Inode, which is open here.
    pub ino: u64,
    /// Open file that the lock is requested through.
    pub handle: u64,
    /// Lock owner.
    pub owner: u64,
    /// flock or fcntl.
    pub class: LockClass,
    /// Shared, exclusive or none.
    pub kind: LockKind,
    /// Byte range.
    pub range: LockRange,
    /// Process, which other clients can see.
    pub pid: u32,
}

/// Outcome of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The lock is granted.
    Locked {
        /// True if the caller's cached pages of the file are void: another client may have changed
        /// the file since this client's last lock.
        void: bool,
    },
    /// The request waits. [`Locks::grants`] returns its outcome.
    Queued,
}

/// Takes and releases the file locks of this mount.
#[derive(Debug)]
pub struct Locks {
    remote: Arc<dyn Remote>,
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
    files: Arc<OpenFiles>,
    /// True if no other session may use the export.
    pub(crate) exclusive: bool,
}

impl Locks {
    pub(crate) fn new(calls: &Arc<Calls>, files: &Arc<OpenFiles>, exclusive: bool) -> Locks {
        Locks {
            remote: Arc::clone(&calls.remote),
            calls: Arc::clone(calls),
            caching: Arc::clone(&calls.caching),
            inodes: Arc::clone(&calls.caching.inodes),
            files: Arc::clone(files),
            exclusive,
        }
    }

    /// Locks a range. With a `ticket`, a number unique among waiting requests, a conflicting
    /// request waits.
    ///
    /// # Errors
    /// EAGAIN if the lock conflicts and there is no ticket. EDEADLK if waiting would deadlock.
    pub fn lock(&self, wanted: &LockRequest, ticket: Option<u64>) -> Result<LockOutcome, ClientError> {
        let LockRequest { ino, owner, class, kind, range, pid, .. } = *wanted;
        let inode = self.inodes.opened(ino)?;
        let waits = ticket.map(|ticket| kept_lock(ino, lock_key(wanted), Some(ticket)));
        let claim = {
            let mut caller = inode.caller.lock();
            if let Some(kept) = self.inodes.kept() {
                kept.add_lock(&kept_lock(ino, lock_key(wanted), None));
                waits.iter().for_each(|lock| kept.add_lock(lock));
            }
            caller.locks.asks(lock_key(wanted))
        };
        let reply = self.calls.call(&Request::Lock { ino, owner, class, kind, range, pid, ticket });
        let refused = match &reply {
            // These replies change no lock.
            Ok(Reply::Waits) | Err(ClientError::Errno(Errno::EAGAIN | Errno::EDEADLK | Errno::ENOLCK)) => {
                true
            }
            // After any other error the lock may be granted.
            _ => false,
        };
        inode.caller.lock().locks.answered(claim, !refused);
        self.keep_locks(&inode);
        if let (Some(kept), Some(lock), false) =
            (self.inodes.kept(), waits, matches!(reply, Ok(Reply::Waits)))
        {
            kept.remove_lock(&lock);
        }
        match reply? {
            Reply::Locked(locked) => Ok(LockOutcome::Locked { void: self.locked(ino, locked)? }),
            Reply::Waits => Ok(LockOutcome::Queued),
            _ => wrong_kind(),
        }
    }

    /// Notes a granted lock. Returns true if the caller's cached pages of the file are void.
    fn locked(&self, ino: u64, locked: Locked) -> Result<bool, ClientError> {
        let inode = self.inodes.opened(ino)?;
        let void = inode.caller.lock().visits.locked(locked) && !inode.pages.are_good() && !self.exclusive;
        // The known size is as old as the pages.
        inode.file.write().size.distrust();
        Ok(void)
    }

    /// Takes in the outcome of a lock that was waited for. Returns as
    /// [`LockOutcome::Locked::void`].
    pub fn granted(&self, wanted: &LockRequest, outcome: Result<Locked, Errno>) -> Result<bool, ClientError> {
        let locked = outcome?;
        let inode = self.inodes.opened(wanted.ino)?;
        {
            let mut caller = inode.caller.lock();
            if let Some(kept) = self.inodes.kept() {
                kept.add_lock(&kept_lock(wanted.ino, lock_key(wanted), None));
            }
            caller.locks.has(lock_key(wanted));
        }
        self.locked(wanted.ino, locked)
    }

    /// Blocks until lock requests that wait have an outcome, and returns each outcome once. Returns
    /// `None` if the server knows of no waiting request; the caller then asks again. One thread
    /// calls this at a time.
    pub fn grants(&self, cancel: &Cancel) -> Result<Option<Vec<Granted>>, ClientError> {
        let (mut out, mut back) = (Vec::new(), Vec::new());
        encode_request(&Request::Grants, &mut out);
        let (epoch, wait) = (Some(self.remote.epochs().newest), ReplyWait::Cancellable(cancel));
        self.remote.call(&out, &mut back, CallOptions { epoch, wait, ..CallOptions::default() })?;
        match decode_reply(&back)? {
            Reply::Grants(granted) => {
                granted.iter().for_each(|granted| self.ends_waiting(granted.ticket));
                Ok(Some(granted))
            }
            Reply::AskAgain => Ok(None),
            Reply::Error(errno) => Err(errno.into()),
            _ => wrong_kind(),
        }
    }

    /// Publishes the pending write time, then unlocks a range.
    pub fn unlock(&self, wanted: &LockRequest) -> Result<(), ClientError> {
        let LockRequest { ino, owner, class, range, pid, .. } = *wanted;
        self.files.flush(ino)?;
        let inode = self.inodes.get(ino).filter(|_| range == LockRange::ALL);
        let claims = inode.as_ref().map(|inode| inode.caller.lock().locks.gives_up(owner, class));
        let kind = LockKind::Unlock;
        let unlocked =
            self.calls.call_done(&Request::Lock { ino, owner, class, kind, range, pid, ticket: None });
        if let (Some(inode), Some(claims)) = (inode, claims) {
            let mut caller = inode.caller.lock();
            claims.into_iter().for_each(|claim: Claim| caller.locks.answered(claim, unlocked.is_err()));
            drop(caller);
            self.keep_locks(&inode);
        }
        unlocked
    }

    /// Withdraws a waiting request. Returns false if that came too late: its outcome is among the
    /// [grants](Self::grants).
    pub fn stop_waiting(&self, ticket: u64) -> Result<bool, ClientError> {
        self.ends_waiting(ticket);
        self.ticket_done(&Request::StopWaiting { ticket })
    }

    /// Makes a waiting request ignore the other waiters. Returns false as
    /// [`stop_waiting`](Self::stop_waiting) does.
    pub fn insist(&self, ticket: u64) -> Result<bool, ClientError> {
        self.ticket_done(&Request::Insist { ticket })
    }

    /// Notes that a request does not wait any more.
    fn ends_waiting(&self, ticket: u64) {
        if let Some(kept) = self.inodes.kept() {
            kept.remove_locks(|lock| lock.ticket == Some(ticket));
        }
    }

    /// Removes the kept locks of an inode that this client does not hold.
    fn keep_locks(&self, inode: &Inode) {
        let Some(kept) = self.inodes.kept() else { return };
        let held = &inode.caller.lock().locks;
        kept.remove_locks(|lock| {
            let key = LockKey { handle: lock.handle, owner: lock.owner, class: lock.class };
            lock.ino == inode.ino && lock.ticket.is_none() && !held.contains(key)
        });
    }

    fn ticket_done(&self, request: &Request<'_>) -> Result<bool, ClientError> {
        match self.calls.call_done(request) {
            Ok(()) => Ok(true),
            Err(ClientError::Errno(Errno::ENOENT)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns a lock that conflicts with `wanted`, if there is one.
    pub fn test_lock(&self, wanted: &LockRequest) -> Result<Option<HeldLock>, ClientError> {
        let LockRequest { ino, owner, class, kind, range, .. } = *wanted;
        let exclusive = kind == LockKind::Exclusive;
        match self.calls.call(&Request::TestLock { ino, owner, class, exclusive, range })? {
            Reply::Conflict(found) => Ok(found),
            _ => wrong_kind(),
        }
    }

    /// Releases the record locks of an owner that has closed the file.
    pub fn unlock_owner(&self, ino: u64, owner: u64) -> Result<(), ClientError> {
        self.unlock_those(ino, |held| (held.owner, held.class) == (owner, LockClass::Record))
    }

    /// Returns EIO if a lock was lost that the handle held: the user would trust data that the lock
    /// no longer protects.
    pub fn check_locks(&self, ino: u64, handle: u64) -> Result<(), ClientError> {
        if !self.inodes.has_lost_locks() {
            return Ok(());
        }
        match self.inodes.get(ino) {
            Some(inode) if inode.has_lost_lock(handle) => Err(Errno::EIO.into()),
            _ => Ok(()),
        }
    }

    /// Releases all locks that were taken through a handle that is closed for good.
    pub fn unlock_handle(&self, ino: u64, handle: u64) -> Result<(), ClientError> {
        let Some(inode) = self.inodes.get(ino) else {
            self.inodes.releases();
            return Ok(());
        };
        inode.forget_lost_locks(handle);
        inode.locks.begin_unlock();
        let gone = inode.caller.lock().locks.take(|held| held.handle == handle);
        self.inodes.releases();
        let any = !gone.is_empty();
        let unlocked = self.unlock_all(ino, gone);
        if any {
            self.keep_locks(&inode);
        }
        inode.locks.end_unlock();
        unlocked
    }

    /// Announces a call of [`unlock_handle`](Self::unlock_handle): a handle is about to be
    /// released.
    pub fn will_release(&self) {
        self.inodes.will_release();
    }

    /// Notes that a descriptor of a handle is being closed, perhaps its last one.
    pub fn may_close(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.caller.lock().locks.may_close(handle);
        }
    }

    /// Returns true if a lock is held through a handle whose last close may have returned.
    pub fn may_be_closed(&self, ino: u64) -> bool {
        self.inodes
            .get(ino)
            .is_some_and(|inode| inode.locks.is_unlocking() || inode.caller.lock().locks.may_be_closed())
    }

    /// Returns true if a release is in progress that gives up locks of a file.
    pub fn is_unlocking(&self, ino: u64) -> bool {
        self.inodes.is_releasing() || self.inodes.get(ino).is_some_and(|inode| inode.locks.is_unlocking())
    }

    /// Blocks until all mounts that hold locks of a file have given up those of closed handles.
    ///
    /// # Errors
    /// The error of the call.
    pub fn confirm_locks(&self, ino: u64) -> Result<(), ClientError> {
        let _counted = self.caching.changes().begin(&Effect::default());
        self.calls.call_done(&Request::ConfirmLocks { ino })
    }

    fn unlock_those(&self, ino: u64, hit: impl Fn(&LockKey) -> bool) -> Result<(), ClientError> {
        let Some(inode) = self.inodes.get(ino) else { return Ok(()) };
        let gone = inode.caller.lock().locks.take(hit);
        let any = !gone.is_empty();
        let unlocked = self.unlock_all(ino, gone);
        if any {
            self.keep_locks(&inode);
        }
        unlocked
    }

    fn unlock_all(&self, ino: u64, mut gone: Vec<LockKey>) -> Result<(), ClientError> {
        // An unlock names an owner and a class, so several handles need one unlock.
        gone.sort_unstable_by_key(|held| (held.owner, held.class == LockClass::Record));
        gone.dedup_by_key(|held| (held.owner, held.class));
        let mut outcome = Ok(());
        for LockKey { handle, owner, class } in gone {
            let (kind, range) = (LockKind::Unlock, LockRange::ALL);
            if let Err(e) = self.unlock(&LockRequest { ino, handle, owner, class, kind, range, pid: 0 }) {
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    }
}

fn kept_lock(ino: u64, LockKey { handle, owner, class }: LockKey, ticket: Option<u64>) -> KeptLock {
    KeptLock { ino, handle, owner, class, ticket }
}

fn lock_key(&LockRequest { handle, owner, class, .. }: &LockRequest) -> LockKey {
    LockKey { handle, owner, class }
}
