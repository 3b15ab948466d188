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

use parking_lot::{Mutex, RwLock};
use rfs_proto::RegionRef;

use crate::numbers::ByNumber;

/// How a session names the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// File data.
    pub arena: RegionRef,
    /// Attribute records.
    pub table: RegionRef,
}

/// It has introduced itself.
const ATTACHED: u8 = 1;
/// It asks for recalls, and keeps what it is told.
const KEEPS: u8 = 2;
/// It is to end, or has ended.
const LOST: u8 = 4;

/// A session.
#[derive(Debug)]
pub struct Session {
    id: u64,
    regions: Regions,
    state: AtomicU8,
    /// The beginning of a value that comes in parts.
    part: Mutex<Vec<u8>>,
}

impl Session {
    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Attaches it. `None` if it is attached already, or has ended.
    pub fn attach(&self, keeps: bool) -> Option<Regions> {
        let state = if keeps { ATTACHED | KEEPS } else { ATTACHED };
        self.state.compare_exchange(0, state, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(self.regions)
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
pub struct Sessions([Stripe; STRIPES]);

impl Sessions {
    /// A session came up. Nothing but to attach is open to it.
    pub fn begin(&self, id: u64, regions: Regions) {
        let session = Session { id, regions, state: AtomicU8::new(0), part: Mutex::default() };
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

    /// How many are attached, those among them that are to end.
    pub fn attached(&self) -> u64 {
        let attached = |session: &&Arc<Session>| session.state.load(Ordering::Acquire) & ATTACHED != 0;
        self.0.iter().map(|stripe| stripe.0.read().values().filter(attached).count() as u64).sum()
    }

    fn stripe(&self, id: u64) -> &RwLock<ByNumber<Arc<Session>>> {
        &self.0[(id % STRIPES as u64) as usize].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attach_once() {
        let region = |addr| RegionRef { addr, len: 1, rkey: 2 };
        let regions = Regions { arena: region(1), table: region(2) };
        let sessions = Sessions::default();
        assert!(sessions.get(1).is_none());
        sessions.begin(1, regions);
        sessions.begin(1 + STRIPES as u64, regions);
        let one = sessions.get(1).unwrap();
        assert_eq!((one.id(), one.is_attached()), (1, false));
        assert_eq!(one.attach(true), Some(regions));
        assert_eq!(one.attach(true), None);
        assert_eq!((one.is_attached(), one.keeps(), sessions.attached()), (true, true, 1));
        let plain = sessions.get(1 + STRIPES as u64).unwrap();
        assert_eq!(plain.attach(false), Some(regions));
        assert_eq!((plain.is_attached(), plain.keeps(), sessions.attached()), (true, false, 2));
        one.detach();
        assert_eq!((one.is_attached(), one.keeps(), sessions.attached()), (false, false, 2));
        assert_eq!(one.attach(true), None);
        sessions.end(1);
        assert!(sessions.get(1).is_none());
        assert_eq!(sessions.attached(), 1);
        // Whoever still has it finds that it has ended.
        sessions.end(1 + STRIPES as u64);
        assert!(!plain.is_attached() && plain.attach(false).is_none());
    }

    #[test]
    fn values_in_parts() {
        let region = RegionRef { addr: 0, len: 0, rkey: 0 };
        let sessions = Sessions::default();
        sessions.begin(1, Regions { arena: region, table: region });
        let session = sessions.get(1).unwrap();
        session.set_part(b"abc");
        assert_eq!((session.take_part(), session.take_part()), (b"abc".to_vec(), Vec::new()));
    }
}
