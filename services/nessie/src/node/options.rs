//! Options of a node.

use std::time::Duration;

use rdmabox::{Address, Key, ProviderKind};

use super::members::{MAX_NODES, Members};
use crate::{
    error::NessieError,
    logic::{entry, word::MAX_OFFSET},
};

/// Options of a node. All nodes of a deployment need the same index, ways, lengths and times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeOptions {
    /// Number of this node in the list.
    pub id: u16,
    /// The listed nodes: all nodes that have a part of the index.
    pub members: Members,
    /// Numbers behind the list, for nodes that join. List and spare numbers are at most 64.
    pub spare: u16,
    /// Addresses to listen at; empty for the address in the list. A node that joins needs one.
    pub listen: Vec<Address>,
    /// Provider of sessions; `None` takes the best that an address offers.
    pub provider: Option<ProviderKind>,
    /// Key of all nodes. A network address needs it, unless `allow_without_keys` is set.
    pub key: Option<Key>,
    /// Serves every program that reaches an address.
    pub allow_without_keys: bool,
    /// Bytes of this node's part of the index: 8 for each slot.
    pub index_bytes: u64,
    /// Bytes of this node's data table.
    pub data_bytes: u64,
    /// Slots that a key can be in: 2 to 4.
    pub ways: usize,
    /// Longest key in bytes.
    pub max_key: usize,
    /// Longest value in bytes.
    pub max_value: usize,
    /// Most filter bits. The bits that table numbers do not need are the limit.
    pub filter_bits: u32,
    /// Entries of other nodes that this node caches; 0 for none.
    pub cache_entries: usize,
    /// Longest path of migrations.
    pub max_depth: u8,
    /// How long an entry waits before it is used again. Operations have seven eighths of it.
    pub reuse_delay: Duration,
    /// How long a node may serve after a majority of the nodes last answered it.
    pub lease: Duration,
    /// The host's threads execute commands of clients at once, for a server-driven store
    /// ([`ServerDriven`](crate::ServerDriven)). The list has one node then.
    pub server_driven: bool,
    /// How long a node may be unreachable before the others give it up.
    pub patience: Duration,
}

impl NodeOptions {
    /// Returns the defaults of a node: 1 MiB of index, 16 MiB of data and 3 ways. Keys have up to
    /// 64 bytes and values up to 1,024 bytes.
    pub fn new(id: u16, members: Members) -> NodeOptions {
        NodeOptions {
            id,
            members,
            spare: 0,
            listen: Vec::new(),
            provider: None,
            key: None,
            allow_without_keys: false,
            index_bytes: 1 << 20,
            data_bytes: 16 << 20,
            ways: 3,
            max_key: 64,
            max_value: 1024,
            filter_bits: 15,
            cache_entries: 0,
            max_depth: 5,
            reuse_delay: Duration::from_secs(2),
            lease: Duration::from_secs(2),
            server_driven: false,
            patience: Duration::from_secs(3),
        }
    }

    /// Returns the bytes that an entry takes in the data table.
    pub fn stride_bytes(&self) -> u64 {
        self.stride() as u64
    }

    pub(crate) fn slots(&self) -> u32 {
        (self.index_bytes / 8).try_into().unwrap_or(u32::MAX)
    }

    pub(crate) fn stride(&self) -> usize {
        entry::stride(self.max_key, self.max_value)
    }

    pub(crate) fn entries(&self) -> u32 {
        (self.data_bytes / self.stride() as u64).try_into().unwrap_or(u32::MAX)
    }

    /// Returns the number of data tables, of listed nodes and of nodes that may join.
    pub(crate) fn tables(&self) -> usize {
        self.members.count() + usize::from(self.spare)
    }

    /// Returns true if this node has a part of the index.
    pub(crate) fn is_listed(&self) -> bool {
        usize::from(self.id) < self.members.count()
    }

    /// Returns the time that an operation may take.
    pub(crate) fn limit(&self) -> Duration {
        self.reuse_delay - self.reuse_delay / 8
    }

    /// Checks that each option is in its range, and that the options fit each other.
    ///
    /// # Errors
    /// [`NessieError::InvalidOption`] names the option and its limits.
    pub(crate) fn check(&self) -> Result<(), NessieError> {
        let wrong = |reason: String| Err(NessieError::InvalidOption(reason));
        if self.tables() > MAX_NODES {
            let count = self.members.count();
            return wrong(format!("spare = {}: {count} nodes are listed, and 64 are the most", self.spare));
        }
        if usize::from(self.id) >= self.tables() {
            return wrong(format!("node {}: the list has nodes 0 to {}", self.id, self.members.count() - 1));
        }
        if !self.is_listed() && self.listen.is_empty() {
            return wrong(format!("node {}: a node that joins needs an address to listen at", self.id));
        }
        if self.server_driven && self.members.count() > 1 {
            return wrong("server-driven: the list of such a node has one node, the node itself".into());
        }
        if self.server_driven && self.spare > 0 {
            return wrong("server-driven: no node can join".into());
        }
        if !(2..=4).contains(&self.ways) {
            return wrong(format!("ways = {}: choose 2 to 4", self.ways));
        }
        if self.slots() < 4 || u64::from(self.slots()) * 8 > u64::from(u32::MAX) * 8 - 8 {
            return wrong(format!("index = {} bytes: choose 32 bytes to 32 GiB", self.index_bytes));
        }
        if self.max_key == 0 || self.max_key > 4096 {
            return wrong(format!("max-key = {}: choose 1 to 4096 bytes", self.max_key));
        }
        if self.max_value > 64 << 20 {
            return wrong(format!("max-value = {}: choose up to 64 MiB", self.max_value));
        }
        if self.entries() == 0 || self.entries() > MAX_OFFSET {
            let stride = self.stride();
            return wrong(format!(
                "data = {} bytes: choose {stride} bytes (one entry) to {MAX_OFFSET} entries",
                self.data_bytes
            ));
        }
        if self.reuse_delay < Duration::from_millis(8) || self.reuse_delay > Duration::from_secs(3600) {
            return wrong(format!("reuse-delay = {:?}: choose 8 ms to an hour", self.reuse_delay));
        }
        if self.lease < Duration::from_millis(100) {
            return wrong(format!("lease = {:?}: choose 100 ms or more", self.lease));
        }
        Ok(())
    }
}
