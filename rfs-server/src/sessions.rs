//! The sessions: who is connected, what they may reach, and whether they have introduced themselves.
//!
//! Threading: any thread may ask at any time. Each request looks its session up once, and from then on asks the session itself,
//! which takes no lock. So a session may end while a request of it is under way. What must not be left behind by then (a lease, a
//! keeper) is noted under the lock of a shard after a look at the session: its end is noted first, and then everything of it is
//! taken out, shard by shard. What a session has open is kept in `leases`.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rfs_proto::{InUse, RegionRef};

use crate::{dispatch::KeptReply, numbers::ByNumber, replies::Replies};

/// How a session names the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// File data.
    pub arena: RegionRef,
    /// Attribute records.
    pub table: RegionRef,
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

/// How a session attaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// It asks for recalls, and keeps what it is told.
    pub keeps: bool,
    /// No others are attached, and none are to be.
    pub alone: bool,
    /// It belongs to a mount that comes back.
    pub returns: bool,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    id: u64,
    regions: Regions,
    state: AtomicU8,
    /// The beginning of a value that comes in parts.
    part: Mutex<Vec<u8>>,
    /// What it asked for once.
    replies: Mutex<Replies<KeptReply>>,
}

impl Session {
    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Nothing is open to it any more, not even to attach again.
    pub fn detach(&self) {
        self.state.fetch_or(LOST, Ordering::AcqRel);
    }

    /// True if it is attached and has not ended.
    pub fn is_attached(&self) -> bool {
        self.state.load(Ordering::Acquire) & (ATTACHED | LOST) == ATTACHED
    }

    /// True if it keeps what it is told.
    pub fn keeps(&self) -> bool {
        self.state.load(Ordering::Acquire) & (KEEPS | LOST) == KEEPS
    }

    /// True if it belongs to a mount that comes back.
    pub fn comes_back(&self) -> bool {
        self.state.load(Ordering::Acquire) & RETURNS != 0
    }

    /// What it asked for once. Held for moments.
    pub fn replies(&self) -> MutexGuard<'_, Replies<KeptReply>> {
        self.replies.lock()
    }

    /// Keeps the beginning of a value for the request that brings the rest.
    pub fn set_part(&self, part: &[u8]) {
        *self.part.lock() = part.to_vec();
    }

    /// Takes the beginning of a value.
    pub fn take_part(&self) -> Vec<u8> {
        std::mem::take(&mut *self.part.lock())
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
    pub fn begin(&self, id: u64, regions: Regions) {
        let (state, part, replies) = (AtomicU8::new(0), Mutex::default(), Mutex::default());
        let session = Session { id, regions, state, part, replies };
        self.stripe(id).write().insert(id, Arc::new(session));
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
        let Manner { keeps, alone, returns } = manner;
        let _one = self.attaching.lock();
        if session.state.load(Ordering::Acquire) & (ATTACHED | LOST) != 0 {
            return Err(Refused::OutOfTurn);
        }
        let others = InUse { sessions: self.attached(), alone: self.count(ATTACHED | ALONE) > 0 };
        if others.alone || (alone && others.sessions > 0) {
            return Err(Refused::InUse(others));
        }
        let mark = |given, mark| if given { mark } else { 0 };
        let state = ATTACHED | mark(keeps, KEEPS) | mark(alone, ALONE) | mark(returns, RETURNS);
        // It may be lost meanwhile.
        let attached = session.state.compare_exchange(0, state, Ordering::AcqRel, Ordering::Acquire);
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
        Regions { arena: region(1), table: region(2) }
    }

    fn begun(sessions: &Sessions, id: u64) -> Arc<Session> {
        sessions.begin(id, regions());
        sessions.get(id).unwrap()
    }

    fn attach(sessions: &Sessions, session: &Session, keeps: bool, alone: bool) -> Result<Regions, Refused> {
        sessions.attach(session, Manner { keeps, alone, returns: false })
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

    #[test]
    fn values_in_parts() {
        let sessions = Sessions::default();
        let session = begun(&sessions, 1);
        session.set_part(b"abc");
        assert_eq!((session.take_part(), session.take_part()), (b"abc".to_vec(), Vec::new()));
    }
}
