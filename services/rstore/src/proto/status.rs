//! The state of a master, for its operators.

use serde::{Deserialize, Serialize};

/// The state of a master.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Length of a chunk in bytes.
    pub chunk_bytes: u64,
    /// The stores.
    pub stores: Vec<StoreStatus>,
    /// Chunks by their use.
    pub chunks: ChunkCounts,
    /// Number of namespaces.
    pub namespaces: u64,
    /// Number of regions.
    pub regions: u64,
    /// Number of clients, also of lost ones whose access is being ended.
    pub clients: u64,
    /// References of clients to regions.
    pub references: u64,
    /// Calls of clients that the master has answered since its start.
    pub calls: u64,
}

/// Number of chunks of each use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkCounts {
    /// Prepared, and of no namespace.
    pub free: u64,
    /// Of a namespace, without a region.
    pub reserved: u64,
    /// Of a region.
    pub bound: u64,
    /// Of a writer's lease.
    pub leased: u64,
    /// Of a lease that has ended, whose writer can still reach them.
    pub fenced: u64,
}

/// A store, as the master sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Number of the store.
    pub store: u16,
    /// Its address.
    pub address: String,
    /// The master can give it orders.
    pub up: bool,
    /// Most chunks that it lends.
    pub capacity: u64,
    /// Chunks that it has prepared.
    pub prepared: u64,
    /// Prepared chunks without a use.
    pub free: u64,
}
