//! The attached sessions of an export and their state.
//!
//! [`Sessions::get`] finds a session; its state is read from the [`Session`] itself.
//!
//! # Concurrency
//! Any thread. A request looks its session up once under a stripe lock, then reads atomics. So a
//! session may end during a request. State that must not outlive the session (open files, cache
//! holders) is registered under a shard lock, after a check of the session. The end of the session
//! is recorded first; then the server removes its state shard by shard, so it misses none.

mod attach;
mod session;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rfs_proto::{InUse, RegionRef};

pub use attach::{AttachError, AttachOptions, Credentials, Regions};
pub use session::Session;
use session::{ALONE, ATTACHED, LOST};

use crate::metadata::id_map::ByNumber;

/// The number of no session.
pub(crate) const NO_SESSION: u64 = 0;

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
        let session = Arc::new(Session::new(id, regions, credentials, state));
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
        if session.state() & (ATTACHED | LOST) != 0 {
            return Err(AttachError::OutOfTurn);
        }
        let others = InUse { sessions: self.attached(), alone: self.count(ATTACHED | ALONE) > 0 };
        if others.alone || (alone && others.sessions > 0) {
            return Err(AttachError::InUse(others));
        }
        session.set_mount(options);
        // The session may end concurrently.
        session.attach(options).ok_or(AttachError::OutOfTurn)
    }

    /// Returns the number of attached sessions, including sessions that are ending.
    pub fn attached(&self) -> u64 {
        self.count(ATTACHED)
    }

    /// Returns the number of sessions with all of these state bits.
    fn count(&self, bits: u8) -> u64 {
        let has = |session: &&Arc<Session>| session.state() & bits == bits;
        self.stripes.iter().map(|stripe| stripe.0.read().values().filter(has).count() as u64).sum()
    }

    fn stripe(&self, id: u64) -> &RwLock<ByNumber<Arc<Session>>> {
        &self.stripes[(id % STRIPES as u64) as usize].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::access_mode::AccessMode;

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
