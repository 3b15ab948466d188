//! One attached session and its state.
//!
//! # Concurrency
//! Any thread. Requests read atomics; each of the few locks is held briefly.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};
use rfs_proto::Identity;

use super::{AttachOptions, Credentials, Regions};
use crate::session::{kept_reply::KeptReply, log_quota::SessionQuota, reply_cache::Replies, squash::Squash};

/// The session has attached.
pub(super) const ATTACHED: u8 = 1;
/// The session caches and receives recalls.
const KEEPS: u8 = 2;
/// The session ends or has ended.
pub(super) const LOST: u8 = 4;

/// The session demands to be alone.
pub(super) const ALONE: u8 = 8;
/// The session belongs to a mount that reconnects.
const RETURNS: u8 = 16;
/// The session has asked for recalls, so it hears of inodes that lose their last name.
const ASKS: u8 = 32;

impl AttachOptions {
    /// Returns the state bits of a session that attached with these options.
    pub(super) fn state(self) -> u8 {
        let bit = |given, bit| if given { bit } else { 0 };
        ATTACHED | bit(self.keeps, KEEPS) | bit(self.alone, ALONE) | bit(self.mount.is_some(), RETURNS)
    }
}

/// The state of one session, which requests read without the lock of its stripe.
#[derive(Debug)]
pub struct Session {
    id: u64,
    regions: Regions,
    credentials: Credentials,
    /// The mount; set when the session attaches.
    mount: OnceLock<Identity>,
    state: AtomicU8,
    /// Version of the protocol; 0 before the session attaches.
    version: AtomicU32,
    /// The session is restored from a previous server.
    is_restored: bool,
    /// The clients of the session that wait for locks must request them again.
    must_ask_again: AtomicBool,
    /// First part of a value that comes in several requests.
    part: Mutex<Vec<u8>>,
    /// Stored replies of exactly-once requests.
    replies: Mutex<Replies<KeptReply>>,
    /// Log space that the session's state takes.
    log_quota: SessionQuota,
    /// Users that the session's users are mapped to. The server checks permissions if there is a
    /// mapping.
    squash: Mutex<Squash>,
    is_squashed: AtomicBool,
    /// Number of requests so far, for the status.
    requests: AtomicU64,
}

impl Session {
    /// Returns a session with these state bits.
    pub(super) fn new(id: u64, regions: Regions, credentials: Credentials, state: u8) -> Session {
        Session {
            id,
            regions,
            credentials,
            mount: OnceLock::new(),
            state: AtomicU8::new(state),
            version: AtomicU32::new(0),
            is_restored: state != 0,
            must_ask_again: AtomicBool::new(false),
            part: Mutex::default(),
            replies: Mutex::default(),
            log_quota: SessionQuota::default(),
            squash: Mutex::default(),
            is_squashed: AtomicBool::new(false),
            requests: AtomicU64::new(0),
        }
    }

    /// Returns its state bits.
    pub(super) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// Marks a session that has neither attached nor ended as attached. Returns its regions, or
    /// `None` for any other session.
    pub(super) fn attach(&self, options: AttachOptions) -> Option<Regions> {
        let attached = self.state.compare_exchange(0, options.state(), Ordering::AcqRel, Ordering::Acquire);
        attached.is_ok().then_some(self.regions)
    }

    /// Returns its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the version of the protocol.
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// Sets the version of the protocol, before the reply to the attach. Returns the earlier one.
    pub fn speaks(&self, version: u32) -> u32 {
        self.version.swap(version, Ordering::Relaxed)
    }

    pub(super) fn set_mount(&self, options: AttachOptions) {
        if let Some(mount) = options.mount {
            // The mount is set once: an attached session cannot attach again.
            let _ = self.mount.set(mount);
        }
    }

    /// Ends the session: no request of it succeeds any more, not even an attach.
    pub fn detach(&self) {
        self.state.fetch_or(LOST, Ordering::AcqRel);
    }

    /// Returns true if the session is attached and has not ended.
    pub fn is_attached(&self) -> bool {
        self.state.load(Ordering::Acquire) & (ATTACHED | LOST) == ATTACHED
    }

    /// Returns true if the session has attached, even if it has ended since.
    pub fn has_attached(&self) -> bool {
        self.state.load(Ordering::Acquire) & ATTACHED != 0
    }

    /// Returns true if the session may cache.
    pub fn may_cache(&self) -> bool {
        self.state.load(Ordering::Acquire) & (KEEPS | LOST) == KEEPS
    }

    /// Records that the session asks for recalls from now on.
    pub fn asks_for_recalls(&self) {
        self.state.fetch_or(ASKS, Ordering::AcqRel);
    }

    /// Returns true if the session may use an inode's number after the inode has lost its last
    /// name: it hears of the loss.
    pub fn holds_numbers(&self) -> bool {
        self.state.load(Ordering::Acquire) & (ASKS | LOST) == ASKS
    }

    /// Returns true if the session belongs to a mount that reconnects.
    pub fn reconnects(&self) -> bool {
        self.state.load(Ordering::Acquire) & RETURNS != 0
    }

    /// Returns the stored replies of exactly-once requests. The caller holds the lock briefly.
    pub fn replies(&self) -> MutexGuard<'_, Replies<KeptReply>> {
        self.replies.lock()
    }

    /// Counts a request.
    pub fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of requests so far, without those for recalls and grants.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns key and access rights.
    pub fn credentials(&self) -> Credentials {
        self.credentials
    }

    /// Sets the mapping of the session's users, before its first request.
    pub fn squash_as(&self, squash: Squash) {
        *self.squash.lock() = squash;
        self.is_squashed.store(!squash.is_none(), Ordering::Release);
    }

    /// Returns the mapping of the session's users.
    #[inline]
    pub fn squash(&self) -> Squash {
        if self.is_squashed.load(Ordering::Acquire) { *self.squash.lock() } else { Squash::None }
    }

    /// Returns the mount, if it reconnects and the session has attached.
    pub fn mount(&self) -> Option<Identity> {
        self.mount.get().copied()
    }

    /// Returns the options that the session attached with.
    pub fn options(&self) -> AttachOptions {
        let state = self.state.load(Ordering::Acquire);
        AttachOptions { keeps: state & KEEPS != 0, alone: state & ALONE != 0, mount: self.mount() }
    }

    /// Returns true if the session is restored from a previous server.
    pub fn is_restored(&self) -> bool {
        self.is_restored
    }

    /// Makes the session's lock waiters repeat their requests: this server does not have them.
    pub fn ask_again(&self) {
        self.must_ask_again.store(true, Ordering::Release);
    }

    /// Returns true once after each [`Session::ask_again`].
    pub fn take_ask_again(&self) -> bool {
        // A plain load first: the flag is mostly unset.
        self.must_ask_again.load(Ordering::Acquire) && self.must_ask_again.swap(false, Ordering::AcqRel)
    }

    /// Returns the log space that the session's state takes.
    pub(crate) fn log_quota(&self) -> &SessionQuota {
        &self.log_quota
    }

    /// Returns the stored first part of a value.
    pub fn part(&self) -> MutexGuard<'_, Vec<u8>> {
        self.part.lock()
    }
}
