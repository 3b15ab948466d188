//! The memory of the stores of a pool: how the server moves bytes there, and fences sessions.
//!
//! Invariants: a session that was admitted reaches no store any more once [`LentMemory::fence`] has
//! returned true. An access in doubt has ended when [`LentMemory::end_doubts`] names its store. A
//! store that was restarted has nothing that a session could reach.
//!
//! # Concurrency
//! Any thread calls. While stores are asked for the end of doubts, a lock keeps other threads from
//! asking the same; they do not wait for it. No other lock of the pool is held while a store is
//! asked. A transaction may hold shards.

use std::collections::BTreeSet;

use pool::{ClientId, OwnerError, Ticket};
use rfs_proto::StoreAccess;

use super::{member::PoolStore, pool_stores::PoolStores};
use crate::space::lent_memory::{LentMemory, StoreFailure};

/// The stores that have not answered in a round of orders. They are not asked again in the round,
/// because each attempt costs a time limit.
#[derive(Debug, Default)]
struct Silent(BTreeSet<u16>);

impl Silent {
    /// Gives an order to a store, unless it is silent. Returns true if the store has obeyed.
    fn order(&mut self, store: u16, give: impl FnOnce() -> bool) -> bool {
        if self.0.contains(&store) {
            return false;
        }
        let is_done = give();
        if !is_done {
            self.0.insert(store);
        }
        is_done
    }
}

impl PoolStores {
    /// Ends the access of a client to all stores. Returns true if it can reach none any more.
    fn fenced_everywhere(&self, client: u64, silent: &mut Silent) -> bool {
        let stores = self.members();
        // The others are asked, too, so that one store that does not answer delays no other.
        let reached = stores.iter().filter(|store| !silent.order(store.number(), || fenced(store, client)));
        reached.count() == 0
    }
}

impl LentMemory for PoolStores {
    fn zero(&self, store: u16, offset: u64, len: u64) -> Result<(), StoreFailure> {
        let store = self.store(store)?;
        store.note(store.owned.zero(offset, len))
    }

    fn read(&self, store: u16, offset: u64, out: &mut [u8]) -> Result<(), StoreFailure> {
        let store = self.store(store)?;
        store.note(store.owned.read(offset, out))
    }

    fn write(&self, store: u16, offset: u64, data: &[u8]) -> Result<(), StoreFailure> {
        let store = self.store(store)?;
        store.note(store.owned.write(offset, data))
    }

    fn admit(&self, store: u16, session: u64, may_write: bool) -> Option<StoreAccess> {
        let store = self.store(store).ok()?;
        // First: the session is fenced from now on, also if the reply does not arrive.
        let client = self.accesses.lock().admit(store.number(), session, may_write)?;
        let ticket = Ticket { client: ClientId(client), epoch: store.epoch, may_write };
        let key = ticket.key(&self.key);
        let digits = key.secret.to_hex();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap_or_default();
        Some(StoreAccess {
            address: store.owned.address().to_string(),
            chunk: store.owned.chunk(),
            client,
            ticket: key.id.to_string(),
            secret: (0..digits.len()).step_by(2).map(byte).collect(),
        })
    }

    fn is_admitted(&self, session: u64) -> bool {
        self.accesses.lock().is_admitted(session)
    }

    fn fence(&self, session: u64) -> bool {
        let (clients, mut silent) = (self.accesses.lock().clients(session), Silent::default());
        let reaching = clients.into_iter().filter(|client| !self.fenced_everywhere(*client, &mut silent));
        let all = reaching.count() == 0;
        if all {
            self.accesses.lock().forget(session);
        }
        all
    }

    fn writable(&self, session: u64) -> Vec<u16> {
        self.accesses.lock().writable(session)
    }

    fn doubt(&self, store: u16, session: u64) -> bool {
        self.accesses.lock().doubt(store, session)
    }

    fn end_doubts(&self, ended: &mut dyn FnMut(u16)) {
        // The thread that has begun asks for all.
        let Some(_ending) = self.ending.try_lock() else { return };
        let doubts = self.accesses.lock().doubts();
        let mut silent = Silent::default();
        for doubt in doubts {
            // The memory of a store that has left the pool is in no other file's way.
            if let Ok(store) = self.store(doubt.store)
                && !silent.order(doubt.store, || fenced(&store, doubt.client))
            {
                continue;
            }
            if self.accesses.lock().ended(doubt) {
                ended(doubt.store);
            }
            // A further number was given for this store only. It is void everywhere from now on.
            if doubt.client != doubt.session && self.fenced_everywhere(doubt.client, &mut silent) {
                self.accesses.lock().fenced(doubt.session, doubt.client);
            }
        }
    }
}

/// Ends the access of a client to a store. Returns false if it may not have ended.
fn fenced(store: &PoolStore, client: u64) -> bool {
    match store.owned.fence(ClientId(client)) {
        // Nothing of a lost store can be reached.
        Ok(()) | Err(OwnerError::Lost { .. }) => true,
        Err(error) => {
            log::debug!("client {client} is not fenced yet: {error}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a round that asks a silent store for each doubt. Each question costs a time limit,
    /// and the doubts about other stores wait for all questions.
    #[test]
    fn a_round_asks_a_silent_store_once() {
        let (mut silent, mut asked) = (Silent::default(), Vec::new());
        for (store, answers) in [(1, true), (2, false), (1, true), (2, true), (3, false), (2, true)] {
            let is_done = silent.order(store, || {
                asked.push(store);
                answers
            });
            assert_eq!(is_done, store == 1);
        }
        assert_eq!(asked, [1, 2, 1, 3]);
    }
}
