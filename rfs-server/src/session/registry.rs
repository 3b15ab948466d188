//! The attached sessions of an export and their state.
//!
//! [`Sessions::get`] finds a session; its state is read from the [`Session`] itself.
//!
//! # Concurrency
//! Any thread. A request looks its session up once under a stripe lock, then reads atomics. So a
//! session may end during a request. State that must not outlive the session (open files, cache
//! holders) is registered under a shard lock, after a check of the session. The end of the session
//! is recorded first; then the server removes its state shard by shard, so it misses none.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rdmabox::KeyId;
use rfs_proto::{Identity, InUse, RegionRef};

use super::{
    access_mode::AccessMode, kept_reply::KeptReply, log_quota::SessionQuota, reply_cache::Replies,
    squash::Squash,
};
use crate::metadata::id_map::ByNumber;

/// The number of no session.
pub(crate) const NO_SESSION: u64 = 0;

/// References to the server's memory, as a session uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// The arena.
    pub arena: RegionRef,
    /// The attribute table.
    pub table: RegionRef,
    /// The checksums, for an export with checksums.
    pub sums: Option<RegionRef>,
}

/// Reason why a session cannot attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The session is attached or has ended.
    OutOfTurn,
    /// Other sessions are attached, and one side demands to be alone.
    InUse(InUse),
}

/// The session has attached.
const ATTACHED: u8 = 1;
/// The session caches and receives recalls.
const KEEPS: u8 = 2;
/// The session ends or has ended.
const LOST: u8 = 4;

/// The session demands to be alone.
const ALONE: u8 = 8;
/// The session belongs to a mount that reconnects.
const RETURNS: u8 = 16;
/// The session has asked for recalls, so it hears of inodes that lose their last name.
const ASKS: u8 = 32;

/// Identity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Key of the client; `None` without keys.
    pub key: Option<KeyId>,
    /// Access that the key permits.
    pub rights: AccessMode,
}

/// Options of an attach request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// The session caches and receives recalls.
    pub keeps: bool,
    /// The session demands to be alone.
    pub alone: bool,
    /// The mount of the session, if the mount reconnects.
    pub mount: Option<Identity>,
}

impl AttachOptions {
    /// Returns the state bits of a session that attached with these options.
    fn state(self) -> u8 {
        let mark = |given, mark| if given { mark } else { 0 };
        ATTACHED | mark(self.keeps, KEEPS) | mark(self.alone, ALONE) | mark(self.mount.is_some(), RETURNS)
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

    fn set_mount(&self, options: AttachOptions) {
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

/// Number of parts of the session map. Threads that serve different sessions then do not write to
/// the same cache line.
const STRIPES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(RwLock<ByNumber<Arc<Session>>>);

/// The sessions of an export, in stripes by their number.
#[derive(Debug, Default)]
pub struct Sessions {
    stripes: [Stripe; STRIPES],
    /// Serializes attach requests, so that each sees those before it. Taken before any stripe lock.
    attaching: Mutex<()>,
}

impl Sessions {
    /// Adds a session that has connected; it can do nothing but attach.
    pub fn begin(&self, id: u64, regions: Regions, credentials: Credentials) {
        self.insert(id, regions, credentials, 0);
    }

    fn insert(&self, id: u64, regions: Regions, credentials: Credentials, state: u8) -> Arc<Session> {
        let (mount, state, part, replies) =
            (OnceLock::new(), AtomicU8::new(state), Mutex::default(), Mutex::default());
        let (must_ask_again, log_quota) = (AtomicBool::new(false), SessionQuota::default());
        let is_restored = state.load(Ordering::Relaxed) != 0;
        let (squash, is_squashed) = (Mutex::default(), AtomicBool::new(false));
        let session = Session {
            id,
            regions,
            credentials,
            mount,
            state,
            version: AtomicU32::new(0),
            is_restored,
            must_ask_again,
            part,
            replies,
            log_quota,
            squash,
            is_squashed,
            requests: AtomicU64::new(0),
        };
        let session = Arc::new(session);
        self.stripe(id).write().insert(id, Arc::clone(&session));
        session
    }

    /// Restores an attached session of a previous server.
    pub fn restore(&self, id: u64, credentials: Credentials, options: AttachOptions) -> Arc<Session> {
        // A restored session does not attach again. It gets new references when it reconnects.
        let none = RegionRef { addr: 0, len: 0, rkey: 0 };
        let session =
            self.insert(id, Regions { arena: none, table: none, sums: None }, credentials, options.state());
        session.set_mount(options);
        session
    }

    /// Returns all sessions.
    pub fn all(&self) -> Vec<Arc<Session>> {
        let of = |stripe: &Stripe| stripe.0.read().values().cloned().collect::<Vec<_>>();
        self.stripes.iter().flat_map(of).collect()
    }

    /// Returns a session that has connected and not ended.
    #[inline]
    pub fn get(&self, id: u64) -> Option<Arc<Session>> {
        self.stripe(id).read().get(&id).cloned()
    }

    /// Removes a session.
    pub fn end(&self, id: u64) {
        if let Some(session) = self.stripe(id).write().remove(&id) {
            session.detach();
        }
    }

    /// Attaches a session and returns its memory references. An ended session counts as attached
    /// until it is removed, because its one-sided operations may still arrive.
    ///
    /// # Errors
    /// [`AttachError`] if the session has attached or ended, or if the demand of a session to be
    /// alone is violated.
    pub fn attach(&self, session: &Session, options: AttachOptions) -> Result<Regions, AttachError> {
        let alone = options.alone;
        let _one = self.attaching.lock();
        if session.state.load(Ordering::Acquire) & (ATTACHED | LOST) != 0 {
            return Err(AttachError::OutOfTurn);
        }
        let others = InUse { sessions: self.attached(), alone: self.count(ATTACHED | ALONE) > 0 };
        if others.alone || (alone && others.sessions > 0) {
            return Err(AttachError::InUse(others));
        }
        session.set_mount(options);
        // The session may end concurrently.
        let attached =
            session.state.compare_exchange(0, options.state(), Ordering::AcqRel, Ordering::Acquire);
        attached.map(|_| session.regions).map_err(|_| AttachError::OutOfTurn)
    }

    /// Returns the number of attached sessions, including sessions that are ending.
    pub fn attached(&self) -> u64 {
        self.count(ATTACHED)
    }

    /// Returns the number of sessions with all of these state bits.
    fn count(&self, marks: u8) -> u64 {
        let has = |session: &&Arc<Session>| session.state.load(Ordering::Acquire) & marks == marks;
        self.stripes.iter().map(|stripe| stripe.0.read().values().filter(has).count() as u64).sum()
    }

    fn stripe(&self, id: u64) -> &RwLock<ByNumber<Arc<Session>>> {
        &self.stripes[(id % STRIPES as u64) as usize].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions() -> Regions {
        let region = |addr| RegionRef { addr, len: 1, rkey: 2 };
        Regions { arena: region(1), table: region(2), sums: Some(region(3)) }
    }

    fn begun(sessions: &Sessions, id: u64) -> Arc<Session> {
        sessions.begin(id, regions(), Credentials { key: None, rights: AccessMode::Write });
        sessions.get(id).unwrap()
    }

    fn attach(
        sessions: &Sessions,
        session: &Session,
        keeps: bool,
        alone: bool,
    ) -> Result<Regions, AttachError> {
        sessions.attach(session, AttachOptions { keeps, alone, mount: None })
    }

    #[test]
    fn attach_once() {
        let sessions = Sessions::default();
        assert!(sessions.get(1).is_none());
        let one = begun(&sessions, 1);
        let plain = begun(&sessions, 1 + STRIPES as u64);
        assert_eq!((one.id(), one.is_attached()), (1, false));
        assert_eq!(attach(&sessions, &one, true, false), Ok(regions()));
        assert_eq!(attach(&sessions, &one, true, false), Err(AttachError::OutOfTurn));
        assert_eq!((one.is_attached(), one.may_cache(), sessions.attached()), (true, true, 1));
        assert_eq!(attach(&sessions, &plain, false, false), Ok(regions()));
        assert_eq!((plain.is_attached(), plain.may_cache(), sessions.attached()), (true, false, 2));
        one.detach();
        assert_eq!((one.is_attached(), one.may_cache(), sessions.attached()), (false, false, 2));
        assert_eq!(attach(&sessions, &one, true, false), Err(AttachError::OutOfTurn));
        sessions.end(1);
        assert!(sessions.get(1).is_none());
        assert_eq!(sessions.attached(), 1);
        // A holder of the `Arc` sees that the session has ended.
        sessions.end(1 + STRIPES as u64);
        assert!(!plain.is_attached());
        assert_eq!(attach(&sessions, &plain, false, false), Err(AttachError::OutOfTurn));
    }

    #[test]
    fn an_exclusive_session_is_the_only_one_until_it_ends() {
        let sessions = Sessions::default();
        let [one, two, three, four] = [1, 2, 3, 4].map(|id| begun(&sessions, id));
        let refused = |sessions, alone| Err(AttachError::InUse(InUse { sessions, alone }));
        assert_eq!(attach(&sessions, &one, true, false), Ok(regions()));
        assert_eq!(attach(&sessions, &two, true, false), Ok(regions()));
        assert_eq!(attach(&sessions, &three, true, true), refused(2, false));
        sessions.end(2);
        assert_eq!(attach(&sessions, &three, true, true), refused(1, false));
        sessions.end(1);
        // A refused session may ask again, and counts only after it succeeds.
        assert_eq!(attach(&sessions, &three, true, true), Ok(regions()));
        assert_eq!(attach(&sessions, &four, false, true), refused(1, true));
        assert_eq!(attach(&sessions, &four, true, false), refused(1, true));
        three.detach();
        assert_eq!(attach(&sessions, &four, true, false), refused(1, true));
        sessions.end(3);
        assert_eq!(attach(&sessions, &four, true, false), Ok(regions()));
    }
}
