//! Sessions of a store: which client each belongs to, and which clients are to have none.
//!
//! A fence ends a client's sessions of an epoch, and refuses that epoch for ever. Invariants: no
//! session has an epoch that a fence has ended, except while the fence waits for its end. A client
//! uses one session in an epoch at a time. A later session ends the earlier sessions, and uses the
//! store when they have ended.
//!
//! # Concurrency
//! Plain values. The service has a lock around them.

use std::collections::HashMap;

use crate::ids::ClientId;

/// Sessions of clients.
#[derive(Debug, Default)]
pub(super) struct Visitors {
    /// Client and epoch of each session that has not ended.
    sessions: HashMap<u64, (ClientId, u32)>,
    /// The last epoch of each client that was ended.
    ended: HashMap<ClientId, u32>,
}

/// Why a session is not entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A fence has ended the epoch.
    Ended,
    /// The client has made a later session, which has arrived before.
    Superseded,
    /// The session belongs to another client or to another epoch.
    Known,
}

impl Visitors {
    /// Returns the number of sessions of clients.
    pub(super) fn len(&self) -> u32 {
        self.sessions.len() as u32
    }

    /// Returns true if the session has a client.
    pub(super) fn contains(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Enters a session. Returns the client's earlier sessions of the epoch, which have to end
    /// before this one uses the store. Later sessions have higher numbers.
    pub(super) fn enter(&mut self, session: u64, client: ClientId, epoch: u32) -> Result<Vec<u64>, Refusal> {
        if self.ended.get(&client).is_some_and(|last| epoch <= *last) {
            return Err(Refusal::Ended);
        }
        if self.sessions.get(&session).is_some_and(|known| *known != (client, epoch)) {
            return Err(Refusal::Known);
        }
        let others = self.sessions.iter().filter(|(other, of)| **other != session && **of == (client, epoch));
        let others: Vec<u64> = others.map(|(other, _)| *other).collect();
        if others.iter().any(|other| *other > session) {
            return Err(Refusal::Superseded);
        }
        self.sessions.insert(session, (client, epoch));
        Ok(others)
    }

    /// Ends an epoch of a client. Returns the sessions to end.
    pub(super) fn fence(&mut self, client: ClientId, epoch: u32) -> Vec<u64> {
        let last = self.ended.entry(client).or_insert(epoch);
        *last = epoch.max(*last);
        let ends =
            |(session, of): (&u64, &(ClientId, u32))| (of.0 == client && of.1 <= epoch).then_some(*session);
        self.sessions.iter().filter_map(ends).collect()
    }

    /// Forgets all clients, and which epochs have ended. Returns their sessions, to end them.
    pub(super) fn begin_anew(&mut self) -> Vec<u64> {
        self.ended.clear();
        self.sessions.drain().map(|(session, _)| session).collect()
    }

    /// Removes a session that can reach nothing any more.
    pub(super) fn leave(&mut self, session: u64) {
        self.sessions.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: ClientId = ClientId(1);
    const TWO: ClientId = ClientId(2);

    #[test]
    fn a_fence_ends_the_sessions_of_its_epochs_for_ever() {
        let mut visitors = Visitors::default();
        for (session, client, epoch) in [(10, ONE, 0), (11, ONE, 1), (20, TWO, 0)] {
            assert_eq!(visitors.enter(session, client, epoch), Ok(vec![]));
        }
        let mut ended = visitors.fence(ONE, 1);
        ended.sort_unstable();
        assert_eq!(ended, [10, 11]);
        assert_eq!(visitors.enter(12, ONE, 1), Err(Refusal::Ended));
        assert_eq!(visitors.fence(ONE, 1).len(), 2, "they have not left");
        [10, 11].into_iter().for_each(|session| visitors.leave(session));
        assert_eq!(visitors.enter(13, ONE, 2), Ok(vec![]));
        assert_eq!(visitors.fence(ONE, 0), [], "no session is of epoch 0");
        assert_eq!(visitors.enter(14, ONE, 1), Err(Refusal::Ended), "an old fence opens no epoch");
    }

    #[test]
    fn a_session_waits_for_all_earlier_ones_of_its_client_and_epoch() {
        let mut visitors = Visitors::default();
        for (session, client, epoch) in [(10, ONE, 0), (11, ONE, 1), (20, TWO, 0)] {
            assert_eq!(visitors.enter(session, client, epoch), Ok(vec![]));
        }
        assert_eq!(visitors.enter(30, ONE, 0), Ok(vec![10]));
        // The session 10 has not left, although 30 has ended it.
        let mut earlier = visitors.enter(31, ONE, 0).expect("a later session");
        earlier.sort_unstable();
        assert_eq!(earlier, [10, 30]);
        visitors.leave(10);
        assert_eq!(visitors.enter(31, ONE, 0), Ok(vec![30]), "it says its name again");
        assert_eq!(visitors.enter(29, ONE, 0), Err(Refusal::Superseded), "its introduction was late");
        assert_eq!(visitors.enter(31, TWO, 0), Err(Refusal::Known));
        assert_eq!(visitors.enter(31, ONE, 1), Err(Refusal::Known));
        let mut fenced = visitors.fence(ONE, 0);
        fenced.sort_unstable();
        assert_eq!(fenced, [30, 31], "a session that waits is fenced, too");
    }

    proptest! {
        /// At each time at most one session of a client and an epoch may use the store.
        #[test]
        fn one_session_of_a_client_uses_the_store(steps in proptest::collection::vec((0..3_u8, 0..12_u64), 0..60)) {
            let mut visitors = Visitors::default();
            let mut waits: HashMap<u64, Vec<u64>> = HashMap::new();
            let mut gone = Vec::new();
            for (step, session) in steps {
                if gone.contains(&session) {
                    continue;
                }
                if step > 0 {
                    if let Ok(earlier) = visitors.enter(session, ONE, 0) {
                        waits.insert(session, earlier);
                    }
                } else {
                    visitors.leave(session);
                    gone.push(session);
                    waits.remove(&session);
                    waits.values_mut().for_each(|earlier| earlier.retain(|other| *other != session));
                }
                let users = waits.iter().filter(|(_, earlier)| earlier.is_empty()).count();
                prop_assert!(users <= 1, "{:?}", waits);
            }
        }
    }
}
