//! Sessions of a store: which client each belongs to, and which clients are to have none.
//!
//! A fence ends a client's sessions of an epoch, and refuses that epoch for ever. Invariant: no
//! session has an epoch that a fence has ended, except while the fence waits for its end.
//!
//! # Concurrency
//! Plain values. The service has a lock around them.

use std::collections::{HashMap, HashSet};

use rdmabox::PendingReply;

use crate::ids::ClientId;

/// Sessions of clients, and fences that wait for the end of sessions.
#[derive(Debug)]
pub(super) struct Visitors<R = PendingReply> {
    /// Client and epoch of each session.
    sessions: HashMap<u64, (ClientId, u32)>,
    /// The last epoch of each client that was ended.
    ended: HashMap<ClientId, u32>,
    fences: Vec<Fence<R>>,
}

#[derive(Debug)]
struct Fence<R> {
    sessions: HashSet<u64>,
    reply: R,
}

impl<R> Default for Visitors<R> {
    fn default() -> Visitors<R> {
        Visitors { sessions: HashMap::new(), ended: HashMap::new(), fences: Vec::new() }
    }
}

impl<R> Visitors<R> {
    /// Number of sessions of clients.
    pub(super) fn len(&self) -> u32 {
        self.sessions.len() as u32
    }

    /// Returns true if the session has a client.
    pub(super) fn contains(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Enters a session. Returns false if its epoch has ended.
    pub(super) fn enter(&mut self, session: u64, client: ClientId, epoch: u32) -> bool {
        let ended = self.ended.get(&client).is_some_and(|last| epoch <= *last);
        if !ended {
            self.sessions.insert(session, (client, epoch));
        }
        !ended
    }

    /// Ends an epoch of a client. Returns the sessions to end, or the reply if there are none.
    pub(super) fn fence(&mut self, client: ClientId, epoch: u32, reply: R) -> Result<Vec<u64>, R> {
        let last = self.ended.entry(client).or_insert(epoch);
        *last = epoch.max(*last);
        let ends =
            |(session, of): (&u64, &(ClientId, u32))| (of.0 == client && of.1 <= epoch).then_some(*session);
        let sessions: HashSet<u64> = self.sessions.iter().filter_map(ends).collect();
        if sessions.is_empty() {
            return Err(reply);
        }
        let list = sessions.iter().copied().collect();
        self.fences.push(Fence { sessions, reply });
        Ok(list)
    }

    /// Forgets all clients, and which epochs have ended. Returns their sessions, to end them.
    pub(super) fn begin_anew(&mut self) -> Vec<u64> {
        self.ended.clear();
        self.sessions.drain().map(|(session, _)| session).collect()
    }

    /// Removes a session that can reach nothing any more. Returns the replies of the fences that
    /// waited for it alone.
    pub(super) fn leave(&mut self, session: u64) -> Vec<R> {
        self.sessions.remove(&session);
        let (mut done, mut waiting) = (Vec::new(), Vec::new());
        for mut fence in self.fences.drain(..) {
            fence.sessions.remove(&session);
            if fence.sessions.is_empty() { done.push(fence.reply) } else { waiting.push(fence) }
        }
        self.fences = waiting;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_waits_for_the_sessions_of_its_epochs() {
        let (one, two) = (ClientId(1), ClientId(2));
        let mut visitors = Visitors::<&str>::default();
        assert!(visitors.enter(10, one, 0) && visitors.enter(11, one, 1) && visitors.enter(20, two, 0));
        let mut ended = visitors.fence(one, 1, "fence").expect("two sessions");
        ended.sort_unstable();
        assert_eq!(ended, [10, 11]);
        assert!(visitors.leave(20).is_empty() && visitors.leave(10).is_empty());
        assert_eq!(visitors.leave(11), ["fence"]);
        assert!(!visitors.enter(12, one, 1), "an ended epoch");
        assert!(visitors.enter(13, one, 2));
        assert_eq!(visitors.fence(one, 0, "old"), Err("old"), "no session is of epoch 0");
        assert!(!visitors.enter(14, one, 1), "an old fence opens no epoch");
    }
}
