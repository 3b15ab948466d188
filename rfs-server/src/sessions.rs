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
    /// The beginning of a value that comes in parts.
    part: Vec<u8>,
}

/// The sessions.
#[derive(Debug, Default)]
pub struct Sessions(HashMap<u64, Session>);

impl Sessions {
    /// A session came up. Nothing but to attach is open to it.
    pub fn begin(&mut self, id: u64, regions: Regions) {
        self.0.insert(id, Session { regions, attached: false, part: Vec::new() });
    }

    /// A session is gone.
    pub fn end(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Attaches a session. `None` if there is no such session, or it is attached already.
    pub fn attach(&mut self, id: u64) -> Option<Regions> {
        let session = self.0.get_mut(&id).filter(|session| !session.attached)?;
        session.attached = true;
        Some(session.regions)
    }

    /// True if a session is there and attached.
    pub fn is_attached(&self, id: u64) -> bool {
        self.0.get(&id).is_some_and(|session| session.attached)
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
        assert_eq!(sessions.attach(1), None);
        sessions.begin(1, regions);
        assert!(!sessions.is_attached(1));
        assert_eq!(sessions.attach(1), Some(regions));
        assert_eq!(sessions.attach(1), None);
        assert_eq!((sessions.is_attached(1), sessions.attached()), (true, 1));
        sessions.end(1);
        assert_eq!((sessions.is_attached(1), sessions.attached()), (false, 0));
    }
}
