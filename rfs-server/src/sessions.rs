//! The sessions: who is connected, what they may reach, and whether they have introduced themselves. Pure.
//!
//! Threading: none; the metadata lock protects it. What a session has open is kept in `leases`.

use std::collections::HashMap;

use rfs_proto::RegionRef;

/// How a session names the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// File data.
    pub arena: RegionRef,
    /// Attribute records.
    pub table: RegionRef,
}

#[derive(Debug)]
struct Session {
    regions: Regions,
    attached: bool,
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
        self.0.insert(id, Session { regions, attached: false, lost: false, keeps: false, part: Vec::new() });
    }

    /// A session is gone.
    pub fn end(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Attaches a session. `None` if there is no such session, or it is attached already.
    pub fn attach(&mut self, id: u64, keeps: bool) -> Option<Regions> {
        let session = self.0.get_mut(&id).filter(|session| !session.attached)?;
        session.attached = true;
        session.keeps = keeps;
        Some(session.regions)
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

    #[test]
    fn attach_once() {
        let region = |addr| RegionRef { addr, len: 1, rkey: 2 };
        let regions = Regions { arena: region(1), table: region(2) };
        let mut sessions = Sessions::default();
        assert_eq!(sessions.attach(1, true), None);
        sessions.begin(1, regions);
        assert!(!sessions.is_attached(1));
        assert_eq!(sessions.attach(1, true), Some(regions));
        assert_eq!(sessions.attach(1, true), None);
        assert_eq!((sessions.is_attached(1), sessions.attached()), (true, 1));
        assert!(sessions.keeps(1) && !sessions.keeps(2));
        sessions.detach(1);
        assert_eq!((sessions.is_attached(1), sessions.keeps(1), sessions.attached()), (false, false, 1));
        assert_eq!(sessions.attach(1, true), None);
        sessions.end(1);
        assert_eq!((sessions.is_attached(1), sessions.attached()), (false, 0));
    }
}
