//! The names of namespaces and regions.

use serde::{Deserialize, Serialize};

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
