//! A namespace, and its regions with their versions and leases.
//!
//! # Concurrency
//! Plain values.

use std::collections::{BTreeMap, BTreeSet};

use pool::{ChunkId, ClientId};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct Namespace {
    pub(in crate::machine) name: String,
    pub(in crate::machine) reserved: BTreeSet<ChunkId>,
    pub(in crate::machine) regions: BTreeMap<u64, Region>,
    pub(in crate::machine) next_address: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct Region {
    pub(in crate::machine) bytes: u64,
    pub(in crate::machine) copy_on_write: bool,
    pub(in crate::machine) newest: u64,
    pub(in crate::machine) versions: BTreeMap<u64, Version>,
    pub(in crate::machine) lease: Option<Lease>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct Version {
    pub(in crate::machine) chunks: Vec<ChunkId>,
    pub(in crate::machine) references: BTreeMap<ClientId, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct Lease {
    pub(in crate::machine) number: u64,
    pub(in crate::machine) client: ClientId,
    pub(in crate::machine) first: u32,
    pub(in crate::machine) chunks: Vec<ChunkId>,
    /// Time of its end.
    pub(in crate::machine) end: u64,
}
