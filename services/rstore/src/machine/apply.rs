//! The entry of the machine: one input at a time.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use pool::ClientId;

use super::{
    io::{Input, Output},
    state::{Machine, Presence, Use},
};
use crate::{
    proto::{Answer, ChunkCounts, Request, Status, StoreStatus},
    refusal::Refusal,
};

impl Machine {
    /// Applies an input at a time in milliseconds, which never goes back. Returns the actions that
    /// follow from it.
    pub fn apply(&mut self, now: u64, input: Input) -> Vec<Output> {
        self.now = self.now.max(now);
        match input {
            Input::Hello { call, resume, nonce } => self.hello(call, resume, nonce),
            Input::Call { call, client, request } => self.call(call, client, request),
            Input::ClientGone(client) => self.client_gone(client),
            Input::Register { call, card } => self.register(call, card),
            Input::StoreReady { store, link, chunks } => self.store_ready(store, link, &chunks),
            Input::StoreGone(store) => self.store_gone(store),
            Input::LinkLost { store, link } => self.link_lost(store, link),
            Input::OrderDone { link, order, outcome } => self.order_done(link, order, outcome),
            Input::Restart => self.restart(),
            Input::Tick => {}
        }
        self.pass_time();
        self.shrink_cache();
        std::mem::take(&mut self.outputs)
    }

    /// Returns true if a tick at this time has an effect.
    pub fn is_due(&self, now: u64) -> bool {
        let grace = self.settings.grace_millis;
        let leases = self.namespaces.values().flat_map(|namespace| namespace.regions.values());
        leases.filter_map(|region| region.lease.as_ref()).any(|lease| lease.end <= now)
            || self.lost_clients(now, grace).next().is_some()
            || self.lost_stores(now, grace).next().is_some()
    }

    fn pass_time(&mut self) {
        self.expire_leases();
        self.lose_clients();
        self.lose_stores();
    }

    fn call(&mut self, call: u64, client: ClientId, request: Request) {
        let known = self.clients.get(&client).is_some_and(|client| client.presence == Presence::Here);
        let outcome = match request {
            _ if !known => Err(Refusal::UnknownClient),
            Request::Goodbye => {
                self.end_client(client);
                Ok(Some(Answer::Done))
            }
            Request::CreateNamespace(name) => self.create(name).map(Some),
            Request::JoinNamespace(name) => self.join(&name).map(Some),
            Request::DeleteNamespace(id) => self.delete(id).map(Some),
            Request::Reserve(namespace, bytes) => self.reserve(call, client, namespace, bytes),
            Request::Release(namespace, bytes) => self.release(namespace, bytes).map(Some),
            Request::Alloc { namespace, bytes, copy_on_write } => {
                self.alloc(client, namespace, bytes, copy_on_write).map(Some)
            }
            Request::Free(region) => self.free(client, region).map(Some),
            Request::Init { namespace, address, bytes } => {
                self.init(client, namespace, address, bytes).map(Some)
            }
            Request::Places { region, version, from } => self.places(client, region, version, from).map(Some),
            Request::Drop(region, version) => self.drop_reference(client, region, version).map(Some),
            Request::Lease { region, first, count } => self.lease(client, region, first, count).map(Some),
            Request::Commit(region, lease) => self.commit(client, region, lease).map(Some),
            Request::Abort(region, lease) => self.abort(client, region, lease).map(Some),
            // The driver has inputs of their own for them.
            Request::Hello(_) | Request::Register(_) | Request::Status | Request::Lost(_) => {
                Err(Refusal::NoHello)
            }
        };
        if let Some(answer) = outcome.unwrap_or_else(|refusal| Some(Answer::Refused(refusal))) {
            self.reply(call, Some(client), answer);
        }
    }

    /// Returns the epoch in which a client introduces itself to stores.
    pub fn epoch(&self, client: ClientId) -> u32 {
        self.clients.get(&client).map_or(0, |client| client.epoch)
    }

    /// Returns the state in numbers.
    pub fn status(&self) -> Status {
        let mut counts = ChunkCounts { free: self.account.free(), ..ChunkCounts::default() };
        for (_, used) in self.account.chunks() {
            match used {
                None => {}
                Some(Use::Reserved(_)) => counts.reserved += 1,
                Some(Use::Bound(_)) => counts.bound += 1,
                Some(Use::Leased(..)) => counts.leased += 1,
                Some(Use::Fenced(_)) => counts.fenced += 1,
            }
        }
        let of_store = |(id, capacity, prepared, free)| {
            let state = self.stores.get(&id);
            StoreStatus {
                store: id.0,
                address: state.map(|state| state.address.clone()).unwrap_or_default(),
                up: state.is_some_and(|state| state.state == super::state::LinkState::Up),
                capacity,
                prepared,
                free,
            }
        };
        let regions = || self.namespaces.values().flat_map(|namespace| namespace.regions.values());
        let versions = regions().flat_map(|region| region.versions.values());
        Status {
            chunk_bytes: self.settings.chunk_bytes,
            stores: self.account.stores().map(of_store).collect(),
            chunks: counts,
            namespaces: self.namespaces.len() as u64,
            regions: regions().count() as u64,
            clients: self.clients.len() as u64,
            references: versions.flat_map(|version| version.references.values()).sum(),
            calls: 0,
        }
    }
}
