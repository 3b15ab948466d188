//! Reasons for which the master refuses a call.
//!
//! # Concurrency
//! Plain values.

use pool::{ClientId, StoreId};
use serde::{Deserialize, Serialize};

/// A call had no effect. Each reason has a number ([`code`](Self::code)) that never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A name is empty or too long.
    #[error("the name of a namespace has 1 to 255 bytes")]
    InvalidName,
    /// The namespace exists.
    #[error("namespace {0} exists: join it, or delete it first")]
    NamespaceExists(String),
    /// There is no such namespace.
    #[error("namespace {0} does not exist: create it first")]
    NoSuchNamespace(String),
    /// The namespace was deleted.
    #[error("the namespace was deleted")]
    NamespaceDeleted,
    /// Clients use regions of the namespace.
    #[error(
        "{references} references to regions of the namespace remain: unmap the regions and drop their handles first"
    )]
    NamespaceInUse {
        /// Their number.
        references: u64,
    },
    /// A size is zero, or its sum with an address exceeds 64 bits.
    #[error("{0} bytes are no valid size")]
    InvalidSize(u64),
    /// The stores do not have the memory.
    #[error("{wanted} chunks are wanted, and the stores have room for {room}: add a store, or free memory")]
    NotEnoughMemory {
        /// Chunks that are missing.
        wanted: u64,
        /// Chunks that the stores could prepare.
        room: u64,
    },
    /// A store could not prepare memory.
    #[error("{store} could not prepare memory: {reason}")]
    StoreFailed {
        /// The store.
        store: StoreId,
        /// Its reason.
        reason: String,
    },
    /// A store vanished during the call. A retry uses the others.
    #[error("{0} vanished during the call: try again")]
    StoreLost(StoreId),
    /// The namespace has not reserved as much.
    #[error("{wanted} chunks are wanted, and {reserved} are reserved: reserve more")]
    NotReserved {
        /// Chunks that are wanted.
        wanted: u64,
        /// Chunks that are reserved.
        reserved: u64,
    },
    /// No region has the range.
    #[error("no region has the {bytes} bytes at {address:#x}")]
    NoSuchRegion {
        /// First address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Others refer to the region.
    #[error("{references} references to the region remain: unmap it and drop its handles first")]
    RegionInUse {
        /// References besides the caller's own.
        references: u64,
    },
    /// Bytes of the region were on a store that is lost.
    #[error("the region had bytes on {0}, which is lost: free the region")]
    RegionLost(StoreId),
    /// The caller has no reference to the version.
    #[error("the client has no reference to this version of the region")]
    NoReference,
    /// The region is updated in place.
    #[error("the region is not copy-on-write")]
    NotCopyOnWrite,
    /// Another client writes.
    #[error("{0} is writing to the region: try again when its lease has ended")]
    WriterExists(ClientId),
    /// The lease has ended.
    #[error("the lease has ended: the region keeps its last version")]
    LeaseExpired,
    /// Chunk numbers are out of the region.
    #[error("chunks {first} to {first}+{count} are not in the region")]
    InvalidChunks {
        /// Index of the first.
        first: u32,
        /// Their number.
        count: u32,
    },
    /// The client is not known to the master.
    #[error(
        "the master does not know this client: the client was lost for too long, or the master has restarted \
         without its log. Mapped regions can still be read and written; connect again for others"
    )]
    UnknownClient,
    /// The first call of a session was not `Hello`.
    #[error("a client says hello before its first call")]
    NoHello,
    /// A store has chunks of another master.
    #[error(
        "the store has {0} chunks that this master does not know: start the master with its log, or restart \
         the store"
    )]
    StrangeChunks(u64),
    /// There are too many stores.
    #[error("the master has no further numbers for stores")]
    TooManyStores,
    /// A store lends less than a chunk, or its address is no address.
    #[error("the store is not usable: {0}")]
    InvalidStore(String),
    /// The master cannot write its log.
    #[error("the master cannot write its log: {0}")]
    Log(String),
}

impl Refusal {
    /// Returns the number of the reason.
    pub fn code(&self) -> u16 {
        match self {
            Refusal::InvalidName => 1,
            Refusal::NamespaceExists(_) => 2,
            Refusal::NoSuchNamespace(_) => 3,
            Refusal::NamespaceDeleted => 4,
            Refusal::NamespaceInUse { .. } => 5,
            Refusal::InvalidSize(_) => 6,
            Refusal::NotEnoughMemory { .. } => 7,
            Refusal::StoreFailed { .. } => 8,
            Refusal::StoreLost(_) => 9,
            Refusal::NotReserved { .. } => 10,
            Refusal::NoSuchRegion { .. } => 11,
            Refusal::RegionInUse { .. } => 12,
            Refusal::RegionLost(_) => 13,
            Refusal::NoReference => 14,
            Refusal::NotCopyOnWrite => 15,
            Refusal::WriterExists(_) => 16,
            Refusal::LeaseExpired => 17,
            Refusal::InvalidChunks { .. } => 18,
            Refusal::UnknownClient => 19,
            Refusal::NoHello => 20,
            Refusal::StrangeChunks(_) => 21,
            Refusal::TooManyStores => 22,
            Refusal::InvalidStore(_) => 23,
            Refusal::Log(_) => 24,
        }
    }
}
