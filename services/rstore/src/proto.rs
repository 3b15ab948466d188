//! Calls to the master, and their encoding.
//!
//! A call is one [`Request`], and its reply a [`Reply`] with the client's present epoch. All lists
//! in messages are bounded: places of a region come in pages of [`PAGE_CHUNKS`] chunks.
//!
//! # Concurrency
//! Plain values.

use pool::{ChunkId, ClientId, Incarnation, StoreId, wire::Message};
use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;

/// Prefix of calls to the master.
const MAGIC: [u8; 8] = *b"rstorem2";
/// Most chunks in one reply.
pub const PAGE_CHUNKS: usize = 4096;
/// Longest name of a namespace in bytes.
pub const MAX_NAME: usize = 255;

/// A namespace of a master. No number is used twice, so a deleted namespace is not confused with a
/// later one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespaceId(pub u64);

/// A region: its namespace and its first address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RegionId {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The first address of the region.
    pub address: u64,
}

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
    /// The first places, up to [`PAGE_CHUNKS`].
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

impl Message for Request {
    const MAGIC: [u8; 8] = MAGIC;
}

impl Message for Reply {
    const MAGIC: [u8; 8] = MAGIC;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_of_places_fits_into_a_call() {
        let chunk = ChunkId { store: StoreId(u16::MAX), number: u32::MAX };
        let stores = (0..512).map(|n| (StoreId(n), "unix:/run/rstore/store-000.sock".into())).collect();
        let answer = Answer::Places(vec![chunk; PAGE_CHUNKS], stores);
        let bytes = Reply { epoch: u32::MAX, answer }.to_bytes();
        assert!(bytes.len() <= rdmabox::MAX_CALL, "{} bytes", bytes.len());
        assert!(Reply::decode(&bytes).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let with_magic = [&MAGIC[..], &bytes].concat();
            let _ = (Request::decode(&with_magic), Reply::decode(&with_magic), Request::decode(&bytes));
        }
    }
}
