//! Clients: they connect, come back, and are lost.
//!
//! The master waits for a disconnected client for the grace time. Then it orders all stores to end
//! the access of the client, and drops its references when they have confirmed. So no chunk that a
//! lost client can still write gets another use.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::BTreeSet;

use pool::{ClientId, Order, StoreId};

use super::state::{ClientState, Machine, Presence, Purpose};
use crate::{
    proto::{Answer, Resume, Welcome},
    refusal::Refusal,
};

impl Machine {
    pub(super) fn hello(&mut self, call: u64, resume: Option<Resume>, nonce: u128) {
        let chunk_bytes = self.settings.chunk_bytes;
        let resume = match resume {
            None => {
                let client = ClientId(self.number());
                self.clients.insert(client, ClientState { nonce, epoch: 0, presence: Presence::Here });
                Resume { client, nonce }
            }
            Some(resume) => {
                let known = self.clients.get_mut(&resume.client);
                let is_same = |client: &&mut ClientState| {
                    client.nonce == resume.nonce && !matches!(client.presence, Presence::Ending(_))
                };
                let Some(client) = known.filter(is_same) else {
                    return self.reply(call, None, Answer::Refused(Refusal::UnknownClient));
                };
                client.presence = Presence::Here;
                resume
            }
        };
        self.reply(call, Some(resume.client), Answer::Welcome(Welcome { resume, chunk_bytes }));
    }

    /// Returns true if the client has ended or is lost. It reaches no store, and has no reference.
    pub fn is_gone(&self, id: ClientId) -> bool {
        !self.clients.contains_key(&id)
    }

    pub(super) fn client_gone(&mut self, id: ClientId) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.presence == Presence::Here {
            client.presence = Presence::Away(now);
        }
    }

    /// Returns the clients that were away for at least `grace` milliseconds.
    pub(super) fn lost_clients(&self, now: u64, grace: u64) -> impl Iterator<Item = ClientId> {
        let is_lost = move |state: &ClientState| matches!(state.presence, Presence::Away(since) if now.saturating_sub(since) >= grace);
        self.clients.iter().filter(move |(_, state)| is_lost(state)).map(|(id, _)| *id)
    }

    pub(super) fn lose_clients(&mut self) {
        let lost: Vec<_> = self.lost_clients(self.now, self.settings.grace_millis).collect();
        lost.into_iter().for_each(|client| self.end_client(client));
    }

    /// Ends the access of a client. Its references stay until all stores have confirmed.
    pub(super) fn end_client(&mut self, id: ClientId) {
        let stores: BTreeSet<StoreId> = self.stores.keys().copied().collect();
        let Some(client) = self.clients.get_mut(&id) else { return };
        if matches!(client.presence, Presence::Ending(_)) {
            return;
        }
        client.presence = Presence::Ending(stores.clone());
        let epoch = client.epoch;
        for store in stores {
            self.order(store, Order::Fence { client: id, epoch }, Purpose::EndClient(id));
        }
        self.finish_client(id, None);
    }

    /// Notes that a store has confirmed that a lost client cannot reach it, or is lost.
    pub(super) fn finish_client(&mut self, id: ClientId, store: Option<StoreId>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Presence::Ending(stores) = &mut client.presence else { return };
        store.iter().for_each(|store| _ = stores.remove(store));
        if !stores.is_empty() {
            return;
        }
        self.clients.remove(&id);
        let mut touched = Vec::new();
        for (namespace, state) in &mut self.namespaces {
            for (address, region) in &mut state.regions {
                let mut references = region.versions.values_mut().map(|version| &mut version.references);
                let had = references.any(|of| of.contains_key(&id));
                region.versions.values_mut().for_each(|version| _ = version.references.remove(&id));
                let lease = region.lease.take_if(|lease| lease.client == id);
                if had || lease.is_some() {
                    touched
                        .push((crate::proto::RegionId { namespace: *namespace, address: *address }, lease));
                }
            }
        }
        for (region, lease) in touched {
            self.give_back(region.namespace, lease.into_iter().flat_map(|lease| lease.chunks));
            self.collect(region);
        }
    }
}
