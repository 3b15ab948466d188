//! The uses of chunks.
//!
//! # Concurrency
//! Plain values.

use std::collections::BTreeSet;

use pool::{ChunkId, StoreId};
use serde::{Deserialize, Serialize};

use crate::proto::{NamespaceId, RegionId};

/// The use of a chunk that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) enum Use {
    Reserved(NamespaceId),
    Bound(RegionId),
    Leased(RegionId, u64),
    /// Of an ended lease.
    Fenced(u64),
}

/// Chunks of an ended lease, until its writer cannot reach them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct LeaseFence {
    pub(in crate::machine) namespace: NamespaceId,
    pub(in crate::machine) chunks: Vec<ChunkId>,
    pub(in crate::machine) stores: BTreeSet<StoreId>,
}
