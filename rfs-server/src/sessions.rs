//! The sessions: who is connected, what they may reach, and whether they have introduced themselves. Pure.
//!
//! Threading: none; the metadata lock protects it. What a session has open is kept in `leases`.

use std::collections::HashMap;

use rfs_proto::{InUse, RegionRef};

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
    /// There is no such session, or it is attached already.
    OutOfTurn,
    /// Others are attached, and one of them, or this one, is not to have any beside it.
    InUse(InUse),
}

#[derive(Debug)]
struct Session {
    regions: Regions,
    attached: bool,
    /// Nobody else may be attached until it has ended.
    alone: bool,
    /// It is to end, and only has not done so yet.
    lost: bool,
    /// It asks for recalls, and keeps what it is told.
    keeps: bool,
    /// The beginning of a value that comes in parts.
    part: Vec<u8>,
}

/// The sessions.
#[derive(Debug, Default)]
pub struct Sessions(HashMap<u64, Session>);

impl Sessions {
    /// A session came up. Nothing but to attach is open to it.
    pub fn begin(&mut self, id: u64, regions: Regions) {
        let session =
            Session { regions, attached: false, alone: false, lost: false, keeps: false, part: Vec::new() };
        self.0.insert(id, session);
    }

    /// A session is gone.
    pub fn end(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Attaches a session, `alone` if there are no others and are to be none. One that is lost counts until its end: its one-sided
    /// operations may still arrive.
    pub fn attach(&mut self, id: u64, keeps: bool, alone: bool) -> Result<Regions, Refused> {
        let others = InUse {
            sessions: self.attached(),
            alone: self.0.values().any(|session| session.attached && session.alone),
        };
        let session = self.0.get_mut(&id).filter(|session| !session.attached && !session.lost);
        let session = session.ok_or(Refused::OutOfTurn)?;
        if others.alone || (alone && others.sessions > 0) {
            return Err(Refused::InUse(others));
        }
        (session.attached, session.keeps, session.alone) = (true, keeps, alone);
        Ok(session.regions)
    }

    /// True if a session is there and attached.
    pub fn is_attached(&self, id: u64) -> bool {
        self.0.get(&id).is_some_and(|session| session.attached && !session.lost)
    }

    /// Nothing is open to a session any more, not even to attach again.
    pub fn detach(&mut self, id: u64) {
        if let Some(session) = self.0.get_mut(&id) {
            (session.lost, session.keeps) = (true, false);
        }
    }

    /// True if a session keeps what it is told.
    pub fn keeps(&self, id: u64) -> bool {
        self.0.get(&id).is_some_and(|session| session.keeps)
    }

    /// Keeps the beginning of a value for the request that brings the rest.
    pub fn set_part(&mut self, id: u64, part: &[u8]) {
        if let Some(session) = self.0.get_mut(&id) {
            session.part = part.to_vec();
        }
    }

    /// Takes the beginning of a value.
    pub fn take_part(&mut self, id: u64) -> Vec<u8> {
        self.0.get_mut(&id).map_or_else(Vec::new, |session| std::mem::take(&mut session.part))
    }

    /// How many are attached.
    pub fn attached(&self) -> u64 {
        self.0.values().filter(|session| session.attached).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions() -> Regions {
        let region = |addr| RegionRef { addr, len: 1, rkey: 2 };
        Regions { arena: region(1), table: region(2) }
    }

    #[test]
    fn attach_once() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.attach(1, true, false), Err(Refused::OutOfTurn));
        sessions.begin(1, regions());
        assert!(!sessions.is_attached(1));
        assert_eq!(sessions.attach(1, true, false), Ok(regions()));
        assert_eq!(sessions.attach(1, true, false), Err(Refused::OutOfTurn));
        assert_eq!((sessions.is_attached(1), sessions.attached()), (true, 1));
        assert!(sessions.keeps(1) && !sessions.keeps(2));
        sessions.detach(1);
        assert_eq!((sessions.is_attached(1), sessions.keeps(1), sessions.attached()), (false, false, 1));
        assert_eq!(sessions.attach(1, true, false), Err(Refused::OutOfTurn));
        sessions.end(1);
        assert_eq!((sessions.is_attached(1), sessions.attached()), (false, 0));
    }

    #[test]
    fn who_is_alone_has_nobody_beside_it_until_its_end() {
        let mut sessions = Sessions::default();
        (1..=4).for_each(|id| sessions.begin(id, regions()));
        let refused = |sessions, alone| Err(Refused::InUse(InUse { sessions, alone }));
        assert_eq!(sessions.attach(1, true, false), Ok(regions()));
        assert_eq!(sessions.attach(2, true, false), Ok(regions()));
        assert_eq!(sessions.attach(3, true, true), refused(2, false));
        sessions.end(2);
        assert_eq!(sessions.attach(3, true, true), refused(1, false));
        sessions.end(1);
        // A session that was refused may ask again, and only then counts.
        assert_eq!(sessions.attach(3, true, true), Ok(regions()));
        assert_eq!(
            (sessions.attach(4, false, true), sessions.attach(4, true, false)),
            (refused(1, true), refused(1, true))
        );
        sessions.detach(3);
        assert_eq!(sessions.attach(4, true, false), refused(1, true));
        sessions.end(3);
        assert_eq!(sessions.attach(4, true, false), Ok(regions()));
    }
}
