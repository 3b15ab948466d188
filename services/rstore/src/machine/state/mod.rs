//! The state of the master, and the parts of the machine that all inputs use.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

mod chunk;
mod client;
mod namespace;
mod order;
mod store;

pub(super) use self::{
    chunk::{LeaseFence, Use},
    client::{ClientState, Presence},
    namespace::{Lease, Namespace, Region, Version},
    order::{PendingOrder, Purpose, Reservation},
    store::{LinkState, StoreState},
};

use std::collections::BTreeMap;

use pool::{Account, ClientId, Order, StoreId};
use serde::{Deserialize, Serialize};

use super::io::{Output, Settings};
use crate::{
    proto::{Answer, NamespaceId, RegionId},
    refusal::Refusal,
};

/// The state of a master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub(super) settings: Settings,
    /// Milliseconds since the first start.
    pub(super) now: u64,
    /// Last number that was given to a client, namespace, version, lease, order or reservation.
    pub(super) last_number: u64,
    pub(super) last_store: u16,
    /// Where the next region begins.
    pub(super) last_turn: Option<StoreId>,
    pub(super) account: Account<Use>,
    pub(super) stores: BTreeMap<StoreId, StoreState>,
    pub(super) clients: BTreeMap<ClientId, ClientState>,
    pub(super) names: BTreeMap<String, NamespaceId>,
    pub(super) namespaces: BTreeMap<NamespaceId, Namespace>,
    pub(super) reservations: BTreeMap<u64, Reservation>,
    /// Chunks of ended leases, by the number of the lease.
    pub(super) fences: BTreeMap<u64, LeaseFence>,
    /// Orders without an outcome.
    pub(super) orders: BTreeMap<u64, PendingOrder>,
    #[serde(skip)]
    pub(super) outputs: Vec<Output>,
}

impl Machine {
    /// Makes the machine of a master without stores and namespaces.
    pub fn new(settings: Settings) -> Machine {
        Machine {
            settings,
            now: 0,
            last_number: 0,
            last_store: 0,
            last_turn: None,
            account: Account::default(),
            stores: BTreeMap::new(),
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            reservations: BTreeMap::new(),
            fences: BTreeMap::new(),
            orders: BTreeMap::new(),
            outputs: Vec::new(),
        }
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes over the settings that may differ between starts.
    pub fn set_times(&mut self, settings: &Settings) {
        let chunk_bytes = self.settings.chunk_bytes;
        self.settings = Settings { chunk_bytes, ..settings.clone() };
    }

    /// Returns the time of the last input in milliseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns a number that was not used before.
    pub(super) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn reply(&mut self, call: u64, client: Option<ClientId>, answer: Answer) {
        self.outputs.push(Output::Reply { call, client, answer });
    }

    /// Gives an order, now or when the store is up.
    pub(super) fn order(&mut self, store: StoreId, order: Order, purpose: Purpose) {
        let number = self.number();
        if self.stores.get(&store).is_some_and(|store| store.state == LinkState::Up) {
            self.outputs.push(Output::Order { store, number, order: order.clone() });
        }
        self.orders.insert(number, PendingOrder { store, order, purpose });
    }

    /// Returns the number of whole chunks for `bytes` bytes.
    pub(super) fn chunks_of(&self, bytes: u64) -> Result<u64, Refusal> {
        if bytes == 0 {
            Err(Refusal::InvalidSize(bytes))
        } else {
            Ok(bytes.div_ceil(self.settings.chunk_bytes))
        }
    }

    pub(super) fn namespace(&mut self, id: NamespaceId) -> Result<&mut Namespace, Refusal> {
        self.namespaces.get_mut(&id).ok_or(Refusal::NamespaceDeleted)
    }

    pub(super) fn region(&mut self, id: RegionId) -> Result<&mut Region, Refusal> {
        let missing = Refusal::NoSuchRegion { address: id.address, bytes: 1 };
        self.namespace(id.namespace)?.regions.get_mut(&id.address).ok_or(missing)
    }
}
