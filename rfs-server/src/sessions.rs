//! The sessions: who is connected, what they may reach, and whether they have introduced themselves.
//!
//! Threading: any thread may ask at any time. Each request looks its session up once, and from then on asks the session itself,
//! which takes no lock. So a session may end while a request of it is under way. What must not be left behind by then (a lease, a
//! keeper) is noted under the lock of a shard after a look at the session: its end is noted first, and then everything of it is
//! taken out, shard by shard. What a session has open is kept in `leases`.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rdmabox::KeyId;
use rfs_proto::{Identity, InUse, RegionRef};

use crate::{
    dispatch::{KeptReply, SessionQuota},
    numbers::ByNumber,
    replies::Replies,
    rights::Rights,
    squash::Squash,
};

/// How a session names the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// File data.
    pub arena: RegionRef,
    /// Attribute records.
    pub table: RegionRef,
    /// Checksums, if there are any.
    pub sums: Option<RegionRef>,
}

/// What keeps a session from attaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is attached already, or has ended.
    OutOfTurn,
    /// Others are attached, and one of them, or this one, is not to have any beside it.
    InUse(InUse),
}

/// It has introduced itself.
const ATTACHED: u8 = 1;
/// It asks for recalls, and keeps what it is told.
const KEEPS: u8 = 2;
/// It is to end, or has ended.
const LOST: u8 = 4;

/// Nobody else may be attached until it has ended.
const ALONE: u8 = 8;
/// It belongs to a mount that comes back.
const RETURNS: u8 = 16;
/// It has asked for recalls, so it hears of inodes that lose their last name.
const ASKS: u8 = 32;

/// Who attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// With which key.
    pub key: Option<KeyId>,
    /// To do what.
    pub rights: Rights,
}

/// How a session attaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// It asks for recalls, and keeps what it is told.
    pub keeps: bool,
    /// No others are attached, and none are to be.
    pub alone: bool,
    /// The mount that it belongs to, if that comes back.
    pub mount: Option<Identity>,
}

impl Manner {
    /// The marks of a session that has attached so.
    fn state(self) -> u8 {
        let mark = |given, mark| if given { mark } else { 0 };
        ATTACHED | mark(self.keeps, KEEPS) | mark(self.alone, ALONE) | mark(self.mount.is_some(), RETURNS)
    }
}

/// A session.
#[derive(Debug)]
pub struct Session {
    id: u64,
    regions: Regions,
    credentials: Credentials,
    /// The mount, once it is attached.
    mount: OnceLock<Identity>,
    state: AtomicU8,
    /// It is one of the server before.
    of_before: bool,
    /// Those of it who wait for locks have not been told to ask again.
    asks_again: AtomicBool,
    /// The beginning of a value that comes in parts.
    part: Mutex<Vec<u8>>,
    /// What it asked for once.
    replies: Mutex<Replies<KeptReply>>,
    /// The room that it takes in the log.
    told: SessionQuota,
    /// Whom its users stand for, if not themselves: then the server checks permissions.
    squash: Mutex<Squash>,
    is_squashed: AtomicBool,
}

impl Session {
    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn is_of(&self, manner: Manner) {
        if let Some(mount) = manner.mount {
            // It is said once: whoever is attached attaches no more.
            let _ = self.mount.set(mount);
        }
    }

    /// Nothing is open to it any more, not even to attach again.
    pub fn detach(&self) {
        self.state.fetch_or(LOST, Ordering::AcqRel);
    }

    /// True if it is attached and has not ended.
    pub fn is_attached(&self) -> bool {
        self.state.load(Ordering::Acquire) & (ATTACHED | LOST) == ATTACHED
    }

    /// True if it has attached once, also if it has ended since.
    pub fn has_attached(&self) -> bool {
        self.state.load(Ordering::Acquire) & ATTACHED != 0
    }

    /// True if it keeps what it is told.
    pub fn keeps(&self) -> bool {
        self.state.load(Ordering::Acquire) & (KEEPS | LOST) == KEEPS
    }

    /// The session asks for recalls from now on.
    pub fn asks_for_recalls(&self) {
        self.state.fetch_or(ASKS, Ordering::AcqRel);
    }

    /// Returns true if the session may use an inode's number after the inode has lost its last
    /// name: it hears of the loss.
    pub fn holds_numbers(&self) -> bool {
        self.state.load(Ordering::Acquire) & (ASKS | LOST) == ASKS
    }

    /// True if it belongs to a mount that comes back.
    pub fn comes_back(&self) -> bool {
        self.state.load(Ordering::Acquire) & RETURNS != 0
    }

    /// What it asked for once. Held for moments.
    pub fn replies(&self) -> MutexGuard<'_, Replies<KeptReply>> {
        self.replies.lock()
    }

    /// Who it is.
    pub fn credentials(&self) -> Credentials {
        self.credentials
    }

    /// Says whom its users stand for, before its first request.
    pub fn squash_as(&self, squash: Squash) {
        *self.squash.lock() = squash;
        self.is_squashed.store(!squash.is_nobody(), Ordering::Release);
    }

    /// Returns whom its users stand for.
    #[inline]
    pub fn squash(&self) -> Squash {
        if self.is_squashed.load(Ordering::Acquire) { *self.squash.lock() } else { Squash::Nobody }
    }

    /// Its mount, if that comes back and it is attached.
    pub fn mount(&self) -> Option<Identity> {
        self.mount.get().copied()
    }

    /// How it has attached.
    pub fn manner(&self) -> Manner {
        let state = self.state.load(Ordering::Acquire);
        Manner { keeps: state & KEEPS != 0, alone: state & ALONE != 0, mount: self.mount() }
    }

    /// True if it began at the server before.
    pub fn is_of_before(&self) -> bool {
        self.of_before
    }

    /// Those of it who wait for locks are to ask for them again: nobody here knows of them.
    pub fn ask_again(&self) {
        self.asks_again.store(true, Ordering::Release);
    }

    /// True once after each time that they are to.
    pub fn takes_to_ask_again(&self) -> bool {
        // Mostly it is not so.
        self.asks_again.load(Ordering::Acquire) && self.asks_again.swap(false, Ordering::AcqRel)
    }

    /// The room that it takes in the log.
    pub(crate) fn told(&self) -> &SessionQuota {
        &self.told
    }

    /// The beginning of a value that was kept.
    pub fn part(&self) -> MutexGuard<'_, Vec<u8>> {
        self.part.lock()
    }
}

/// In how many parts the sessions are held, so that threads that serve different ones do not write to the same cache line.
const STRIPES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(RwLock<ByNumber<Arc<Session>>>);

/// The sessions.
#[derive(Debug, Default)]
pub struct Sessions {
    stripes: [Stripe; STRIPES],
    /// Held while a session attaches, so that of two at once the second one sees the first. Before the lock of any stripe.
    attaching: Mutex<()>,
}

impl Sessions {
    /// A session came up. Nothing but to attach is open to it.
    pub fn begin(&self, id: u64, regions: Regions, credentials: Credentials) {
        self.insert(id, regions, credentials, 0);
    }

    fn insert(&self, id: u64, regions: Regions, credentials: Credentials, state: u8) -> Arc<Session> {
        let (mount, state, part, replies) =
            (OnceLock::new(), AtomicU8::new(state), Mutex::default(), Mutex::default());
        let (asks_again, told) = (AtomicBool::new(false), SessionQuota::default());
        let of_before = state.load(Ordering::Relaxed) != 0;
        let (squash, is_squashed) = (Mutex::default(), AtomicBool::new(false));
        let session = Session {
            id,
            regions,
            credentials,
            mount,
            state,
            of_before,
            asks_again,
            part,
            replies,
            told,
            squash,
            is_squashed,
        };
        let session = Arc::new(session);
        self.stripe(id).write().insert(id, Arc::clone(&session));
        session
    }

    /// A session of the server before is attached, as it was.
    pub fn restore(&self, id: u64, credentials: Credentials, manner: Manner) -> Arc<Session> {
        // It attaches no more, and names the memory when it comes back.
        let none = RegionRef { addr: 0, len: 0, rkey: 0 };
        let session =
            self.insert(id, Regions { arena: none, table: none, sums: None }, credentials, manner.state());
        session.is_of(manner);
        session
    }

    /// All that there are.
    pub fn all(&self) -> Vec<Arc<Session>> {
        let of = |stripe: &Stripe| stripe.0.read().values().cloned().collect::<Vec<_>>();
        self.stripes.iter().flat_map(of).collect()
    }

    /// A session that has begun and not ended.
    #[inline]
    pub fn get(&self, id: u64) -> Option<Arc<Session>> {
        self.stripe(id).read().get(&id).cloned()
    }

    /// A session is gone.
    pub fn end(&self, id: u64) {
        if let Some(session) = self.stripe(id).write().remove(&id) {
            session.detach();
        }
    }

    /// Attaches a session; `alone` if there are no others and are to be none. One that is lost counts until its end: its one-sided
    /// operations may still arrive.
    pub fn attach(&self, session: &Session, manner: Manner) -> Result<Regions, Refused> {
        let alone = manner.alone;
        let _one = self.attaching.lock();
        if session.state.load(Ordering::Acquire) & (ATTACHED | LOST) != 0 {
            return Err(Refused::OutOfTurn);
        }
        let others = InUse { sessions: self.attached(), alone: self.count(ATTACHED | ALONE) > 0 };
        if others.alone || (alone && others.sessions > 0) {
            return Err(Refused::InUse(others));
        }
        session.is_of(manner);
        // It may be lost meanwhile.
        let attached = session.state.compare_exchange(0, manner.state(), Ordering::AcqRel, Ordering::Acquire);
        attached.map(|_| session.regions).map_err(|_| Refused::OutOfTurn)
    }

    /// How many are attached, those among them that are to end.
    pub fn attached(&self) -> u64 {
        self.count(ATTACHED)
    }

    /// How many have all these marks.
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
        sessions.begin(id, regions(), Credentials { key: None, rights: Rights::Write });
        sessions.get(id).unwrap()
    }

    fn attach(sessions: &Sessions, session: &Session, keeps: bool, alone: bool) -> Result<Regions, Refused> {
        sessions.attach(session, Manner { keeps, alone, mount: None })
    }

    #[test]
    fn attach_once() {
        let sessions = Sessions::default();
        assert!(sessions.get(1).is_none());
        let one = begun(&sessions, 1);
        let plain = begun(&sessions, 1 + STRIPES as u64);
        assert_eq!((one.id(), one.is_attached()), (1, false));
        assert_eq!(attach(&sessions, &one, true, false), Ok(regions()));
        assert_eq!(attach(&sessions, &one, true, false), Err(Refused::OutOfTurn));
        assert_eq!((one.is_attached(), one.keeps(), sessions.attached()), (true, true, 1));
        assert_eq!(attach(&sessions, &plain, false, false), Ok(regions()));
        assert_eq!((plain.is_attached(), plain.keeps(), sessions.attached()), (true, false, 2));
        one.detach();
        assert_eq!((one.is_attached(), one.keeps(), sessions.attached()), (false, false, 2));
        assert_eq!(attach(&sessions, &one, true, false), Err(Refused::OutOfTurn));
        sessions.end(1);
        assert!(sessions.get(1).is_none());
        assert_eq!(sessions.attached(), 1);
        // Whoever still has it finds that it has ended.
        sessions.end(1 + STRIPES as u64);
        assert!(!plain.is_attached());
        assert_eq!(attach(&sessions, &plain, false, false), Err(Refused::OutOfTurn));
    }

    #[test]
    fn who_is_alone_has_nobody_beside_it_until_its_end() {
        let sessions = Sessions::default();
        let [one, two, three, four] = [1, 2, 3, 4].map(|id| begun(&sessions, id));
        let refused = |sessions, alone| Err(Refused::InUse(InUse { sessions, alone }));
        assert_eq!(attach(&sessions, &one, true, false), Ok(regions()));
        assert_eq!(attach(&sessions, &two, true, false), Ok(regions()));
        assert_eq!(attach(&sessions, &three, true, true), refused(2, false));
        sessions.end(2);
        assert_eq!(attach(&sessions, &three, true, true), refused(1, false));
        sessions.end(1);
        // A session that was refused may ask again, and only then counts.
        assert_eq!(attach(&sessions, &three, true, true), Ok(regions()));
        assert_eq!(attach(&sessions, &four, false, true), refused(1, true));
        assert_eq!(attach(&sessions, &four, true, false), refused(1, true));
        three.detach();
        assert_eq!(attach(&sessions, &four, true, false), refused(1, true));
        sessions.end(3);
        assert_eq!(attach(&sessions, &four, true, false), Ok(regions()));
    }
}
