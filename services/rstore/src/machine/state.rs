//! The state of the master, without behaviour.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::{BTreeMap, BTreeSet};

use pool::{Account, ChunkId, ClientId, Incarnation, Order, StoreId};
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

/// The use of a chunk that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Use {
    Reserved(NamespaceId),
    Bound(RegionId),
    Leased(RegionId, u64),
    /// Of an ended lease.
    Fenced(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoreState {
    pub(super) address: String,
    pub(super) incarnation: Incarnation,
    pub(super) capacity: u64,
    pub(super) state: LinkState,
    /// Number of the link that was asked for last.
    pub(super) link: u64,
    /// It was ready before in this run, so all chunks that it has are this master's.
    pub(super) is_own: bool,
}

/// Whether a store gets orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LinkState {
    Up,
    /// The master connects, or waits for the store to register again, since this time.
    Down(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClientState {
    pub(super) nonce: u128,
    pub(super) epoch: u32,
    pub(super) presence: Presence,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Presence {
    Here,
    /// Disconnected since this time.
    Away(u64),
    /// Lost. These stores have not confirmed the end of its access yet.
    Ending(BTreeSet<StoreId>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Namespace {
    pub(super) name: String,
    pub(super) reserved: BTreeSet<ChunkId>,
    pub(super) regions: BTreeMap<u64, Region>,
    pub(super) next_address: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Region {
    pub(super) bytes: u64,
    pub(super) copy_on_write: bool,
    pub(super) newest: u64,
    pub(super) versions: BTreeMap<u64, Version>,
    pub(super) lease: Option<Lease>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) chunks: Vec<ChunkId>,
    pub(super) references: BTreeMap<ClientId, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) number: u64,
    pub(super) client: ClientId,
    pub(super) first: u32,
    pub(super) chunks: Vec<ChunkId>,
    /// Time of its end.
    pub(super) end: u64,
}

/// A reservation that waits for stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reservation {
    pub(super) call: u64,
    pub(super) client: ClientId,
    pub(super) namespace: NamespaceId,
    pub(super) chunks: Vec<ChunkId>,
    /// Orders without an outcome.
    pub(super) outstanding: u64,
    pub(super) failure: Option<Refusal>,
}

/// Chunks of an ended lease, until its writer cannot reach them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseFence {
    pub(super) namespace: NamespaceId,
    pub(super) chunks: Vec<ChunkId>,
    pub(super) stores: BTreeSet<StoreId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PendingOrder {
    pub(super) store: StoreId,
    pub(super) order: Order,
    pub(super) purpose: Purpose,
}

/// The purpose of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Purpose {
    Reservation(u64),
    Discard(u32),
    Mark,
    EndClient(ClientId),
    EndLease(u64),
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
