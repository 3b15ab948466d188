//! The accesses of sessions to stores: the number of the client that each session is at each store.
//!
//! A session begins as the client of its own number. When its access to a store has ended, it gets
//! another number there. Invariants: no store admits a number after its fence. A session has one
//! number at a store at a time. So the end of an access never concerns a later one.
//!
//! # Concurrency
//! Plain values.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bits of the number of a session. The bits above count its further numbers.
const SESSION_BITS: u32 = 48;

/// The accesses of all sessions.
#[derive(Debug, Default)]
pub(super) struct Accesses {
    sessions: HashMap<u64, SessionAccesses>,
    doubts: Vec<Doubt>,
}

/// The accesses of a session.
#[derive(Debug, Default)]
struct SessionAccesses {
    /// The numbers with which the session may reach some store.
    clients: BTreeSet<u64>,
    /// How many further numbers it has got.
    further: u16,
    stores: BTreeMap<u16, Access>,
}

/// The access of a session to a store.
#[derive(Debug)]
struct Access {
    /// `None` if the session has used up all numbers.
    client: Option<u64>,
    state: AccessState,
    /// The session has got a ticket that permits writes.
    may_write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessState {
    /// The session does not know the number.
    Unused,
    Given,
    /// The store is to end the access. Until then the session may use it.
    Ending,
}

impl Access {
    fn is_writable(&self) -> bool {
        self.may_write && self.state == AccessState::Given
    }
}

/// An access that has to end, because writes may arrive late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) store: u16,
    pub(super) session: u64,
    pub(super) client: u64,
}

impl Accesses {
    /// Gives a session access to a store. Returns the number of the client that it is there.
    pub(super) fn admit(&mut self, store: u16, session: u64, may_write: bool) -> Option<u64> {
        let of = self.sessions.entry(session).or_default();
        let new = || Access { client: Some(session), state: AccessState::Unused, may_write };
        let access = of.stores.entry(store).or_insert_with(new);
        let client = access.client?;
        access.may_write |= may_write;
        if access.state == AccessState::Unused {
            access.state = AccessState::Given;
        }
        of.clients.insert(client);
        Some(client)
    }

    /// Returns true if a session may reach stores.
    pub(super) fn is_admitted(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Returns the stores at which the present access of a session may write.
    pub(super) fn writable(&self, session: u64) -> Vec<u16> {
        let of = self.sessions.get(&session).into_iter().flat_map(|of| &of.stores);
        of.filter(|(_, access)| access.is_writable()).map(|(store, _)| *store).collect()
    }

    /// Returns the numbers with which a session may reach stores.
    pub(super) fn clients(&self, session: u64) -> BTreeSet<u64> {
        self.sessions.get(&session).map(|of| of.clients.clone()).unwrap_or_default()
    }

    /// Forgets a session that reaches no store any more. Its doubts stay.
    pub(super) fn forget(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    /// Notes that the present access of a session to a store has to end. Returns false if there is
    /// none that may write, or if its end is noted already.
    pub(super) fn doubt(&mut self, store: u16, session: u64) -> bool {
        let of = self.sessions.get_mut(&session);
        let Some(access) = of.and_then(|of| of.stores.get_mut(&store)) else { return false };
        let Some(client) = access.client.filter(|_| access.is_writable()) else { return false };
        access.state = AccessState::Ending;
        self.doubts.push(Doubt { store, session, client });
        true
    }

    /// Returns the accesses that have to end.
    pub(super) fn doubts(&self) -> Vec<Doubt> {
        self.doubts.clone()
    }

    /// Notes that an access has ended: the session gets another number at the store. Returns false
    /// if another thread has noted it.
    pub(super) fn ended(&mut self, doubt: Doubt) -> bool {
        let Some(at) = self.doubts.iter().position(|other| *other == doubt) else { return false };
        self.doubts.swap_remove(at);
        if let Some(of) = self.sessions.get_mut(&doubt.session) {
            let further = of.further.checked_add(1);
            of.further = further.unwrap_or(of.further);
            let client = further.map(|further| doubt.session | u64::from(further) << SESSION_BITS);
            let access = Access { client, state: AccessState::Unused, may_write: false };
            of.stores.insert(doubt.store, access);
        }
        true
    }

    /// Forgets a number that all stores have fenced.
    pub(super) fn fenced(&mut self, session: u64, client: u64) {
        if let Some(of) = self.sessions.get_mut(&session) {
            of.clients.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: u64 = 7;
    const SECOND: u64 = 7 | 1 << 48;

    /// Catches an end that concerns the next access: the client would lose it again and again.
    #[test]
    fn an_access_ends_once_and_the_next_has_another_number() {
        let mut accesses = Accesses::default();
        assert!(!accesses.doubt(1, SESSION), "it has no access");
        assert_eq!(
            (accesses.admit(1, SESSION, true), accesses.admit(2, SESSION, true)),
            (Some(SESSION), Some(SESSION))
        );
        assert!(accesses.doubt(1, SESSION) && !accesses.doubt(1, SESSION), "it ends already");
        assert_eq!(accesses.admit(1, SESSION, true), Some(SESSION), "the store still admits it");
        let [doubt] = accesses.doubts()[..] else { panic!("{accesses:?}") };
        assert_eq!(doubt, Doubt { store: 1, session: SESSION, client: SESSION });
        assert!(accesses.ended(doubt) && !accesses.ended(doubt), "it ends once");
        assert!(!accesses.doubt(1, SESSION), "the session does not know its next number");
        assert_eq!(
            (accesses.admit(1, SESSION, true), accesses.admit(2, SESSION, true)),
            (Some(SECOND), Some(SESSION))
        );
        assert!(accesses.doubt(1, SESSION) && accesses.doubt(2, SESSION));
        assert_eq!(accesses.writable(SESSION), [0; 0], "both end");
        accesses.admit(3, SESSION, false);
        assert!(!accesses.doubt(3, SESSION), "it cannot write there");
        accesses.admit(3, SESSION, true);
        assert_eq!(accesses.writable(SESSION), [3]);
    }

    /// Catches a session that ends while it can still reach a store by one of its numbers.
    #[test]
    fn all_numbers_are_fenced_until_all_stores_have_done_so() {
        let mut accesses = Accesses::default();
        accesses.admit(1, SESSION, true);
        accesses.doubt(1, SESSION);
        accesses.ended(accesses.doubts()[0]);
        assert_eq!(accesses.clients(SESSION), BTreeSet::from([SESSION]));
        accesses.admit(1, SESSION, true);
        assert_eq!(accesses.clients(SESSION), BTreeSet::from([SESSION, SECOND]));
        accesses.doubt(1, SESSION);
        accesses.fenced(SESSION, SECOND);
        assert_eq!(accesses.clients(SESSION), BTreeSet::from([SESSION]));
        accesses.forget(SESSION);
        assert!(!accesses.is_admitted(SESSION));
        assert_eq!(accesses.doubts().len(), 1, "a write may still arrive");
        assert!(accesses.ended(accesses.doubts()[0]));
    }

    #[test]
    fn a_session_without_further_numbers_gets_no_access() {
        let mut accesses = Accesses::default();
        for _ in 0..=u16::MAX {
            assert!(accesses.admit(1, SESSION, true).is_some());
            accesses.doubt(1, SESSION);
            accesses.ended(accesses.doubts()[0]);
        }
        assert_eq!(accesses.admit(1, SESSION, true), None);
        assert_eq!(accesses.admit(2, SESSION, true), Some(SESSION));
    }
}
