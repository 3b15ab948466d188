//! Replies of the master.

use pool::{ChunkId, ClientId, StoreId};
use serde::{Deserialize, Serialize};

use super::{
    ids::{NamespaceId, RegionId},
    request::Resume,
    status::Status,
};
use crate::refusal::Refusal;

/// A region, as the master describes it to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionInfo {
    /// The region.
    pub region: RegionId,
    /// Length in bytes.
    pub bytes: u64,
    /// Updates are out of place.
    pub copy_on_write: bool,
    /// The version.
    pub version: u64,
    /// The first places, up to [`PAGE_CHUNKS`](super::PAGE_CHUNKS).
    pub chunks: Vec<ChunkId>,
    /// Addresses of the stores of these chunks.
    pub stores: Vec<(StoreId, String)>,
}

/// Chunks to write a new version to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// Number of the lease.
    pub lease: u64,
    /// The chunks, in the order of the region.
    pub chunks: Vec<ChunkId>,
    /// Addresses of the stores of these chunks.
    pub stores: Vec<(StoreId, String)>,
    /// Milliseconds until the lease ends.
    pub millis: u64,
}

/// The facts that a client learns when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The client's name, also after a new connection.
    pub resume: Resume,
    /// Length of a chunk in bytes.
    pub chunk_bytes: u64,
}

/// The effect of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The client is known.
    Welcome(Welcome),
    /// A namespace.
    Namespace(NamespaceId),
    /// The call is done.
    Done,
    /// A region, to which the client has one more reference.
    Region(RegionInfo),
    /// Further places of a region.
    Places(Vec<ChunkId>, Vec<(StoreId, String)>),
    /// A lease.
    Lease(LeaseInfo),
    /// A store has this number.
    Registered(StoreId),
    /// The state of the master.
    Status(Box<Status>),
    /// Clients that are lost or have ended.
    Lost(Vec<ClientId>),
    /// The call had no effect.
    Refused(Refusal),
}

/// A reply of the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The epoch in which the client introduces itself to stores.
    pub epoch: u32,
    /// The effect of the call.
    pub answer: Answer,
}
