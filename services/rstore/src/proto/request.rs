//! Calls to the master.

use pool::{ClientId, Incarnation};
use serde::{Deserialize, Serialize};

use super::ids::{NamespaceId, RegionId};

/// A client that comes back after its session with the master, or the master, has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Its number.
    pub client: ClientId,
    /// The random number that it got.
    pub nonce: u128,
}

/// A store that joins the pool of the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCard {
    /// The address of the store, as clients reach it.
    pub address: String,
    /// The random number of its run.
    pub incarnation: Incarnation,
    /// Most bytes that it lends.
    pub capacity: u64,
}

/// A call to the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A client connects, or comes back.
    Hello(Option<Resume>),
    /// The client ends. Its references and leases end with it.
    Goodbye,
    /// Creates a namespace.
    CreateNamespace(String),
    /// Finds a namespace.
    JoinNamespace(String),
    /// Deletes a namespace with its regions.
    DeleteNamespace(NamespaceId),
    /// Prepares memory for a namespace.
    Reserve(NamespaceId, u64),
    /// Returns prepared memory of a namespace to the pool.
    Release(NamespaceId, u64),
    /// Binds reserved chunks to a new region.
    Alloc {
        /// The namespace.
        namespace: NamespaceId,
        /// Length in bytes.
        bytes: u64,
        /// Updates are out of place.
        copy_on_write: bool,
    },
    /// Deletes a region, to which the caller has the only reference.
    Free(RegionId),
    /// Gets a reference to the region that has a range of addresses.
    Init {
        /// The namespace.
        namespace: NamespaceId,
        /// First address of the range.
        address: u64,
        /// Length of the range in bytes.
        bytes: u64,
    },
    /// Asks for further places of a version to which the caller has a reference.
    Places {
        /// The region.
        region: RegionId,
        /// The version.
        version: u64,
        /// Index of the first chunk.
        from: u32,
    },
    /// Drops a reference to a version of a region.
    Drop(RegionId, u64),
    /// Asks for chunks to write a new version to.
    Lease {
        /// The region.
        region: RegionId,
        /// Index of the first chunk to replace.
        first: u32,
        /// Number of chunks to replace.
        count: u32,
    },
    /// Publishes the chunks of a lease as a new version, to which the caller gets a reference in
    /// addition.
    Commit(RegionId, u64),
    /// Gives the chunks of a lease back, which the caller has not begun to write, or has written
    /// completely.
    Abort(RegionId, u64),
    /// A store joins.
    Register(StoreCard),
    /// Asks for the state of the master.
    Status,
    /// Asks which of these clients are lost, or have ended.
    Lost(Vec<ClientId>),
}
