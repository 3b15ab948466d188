//! Errors of nodes and of operations.

use std::time::Duration;

use rdmabox::{ConnectError, HostError, RequestError};

use crate::logic::error::DecodeError;

/// Error of a node or of an operation on a key.
///
/// [`is_retryable`](Self::is_retryable) tells whether a repetition can succeed without a change of
/// the deployment. [`outcome_unknown`](Self::outcome_unknown) tells whether a PUT or DELETE that
/// failed so may have taken effect, or may still take effect.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NessieError {
    /// A size is zero, too large, or not that of the peers.
    #[error("invalid option: {0}")]
    InvalidOption(String),
    /// The file of nodes is wrong.
    #[error("nodes file: {0}")]
    Members(String),
    /// The key or the value is longer than the deployment allows.
    #[error("{what} of {len} bytes: this store takes up to {max} (option {option})")]
    TooLong {
        /// "key" or "value".
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// Largest length in bytes.
        max: usize,
        /// Option of the nodes that sets the limit.
        option: &'static str,
    },
    /// All slots of the key are taken, and no path of migrations frees one.
    #[error("index full: make it larger (option --index)")]
    IndexFull,
    /// This node's data table has no unused entry.
    #[error("data table full: delete keys, or make it larger (option --data)")]
    DataFull,
    /// The key may have had a value on a node that is lost. A PUT stores a new one.
    #[error("lost: the key may have had a value on a node that is lost; a PUT stores a new value")]
    Lost,
    /// All slots of the key are on lost nodes, so that no PUT can store it.
    #[error("all slots of the key are on lost nodes: restart all nodes")]
    NoSlot,
    /// A node does not answer. After a while the nodes agree that it is lost, or it is back.
    #[error("node {node} does not answer: {reason}")]
    Unreachable {
        /// Number of the node.
        node: u16,
        /// Why.
        reason: String,
    },
    /// An operation took longer than an entry waits before it is used again.
    #[error("the operation took longer than {0:?}: other clients or this machine are too slow")]
    TooLate(Duration),
    /// Fewer than a majority of the nodes answer.
    #[error("no majority: this node reaches fewer than {needed} of {nodes} nodes")]
    NoMajority {
        /// Nodes that have to answer, with this one.
        needed: usize,
        /// Nodes of the deployment.
        nodes: usize,
    },
    /// The other nodes gave this node up, or its number belongs to an earlier process.
    #[error("node {node} is given up by the others: start it with a new number, or restart all nodes")]
    Condemned {
        /// Number of this node.
        node: u16,
    },
    /// A node has another geometry or version.
    #[error("node {node} does not fit: {reason}")]
    Mismatch {
        /// Number of the node.
        node: u16,
        /// The difference.
        reason: String,
    },
    /// The atomics of a device are not atomic towards those of another device or the processor.
    #[error(
        "atomics to node {node} over {provider} do not match those of its processors: \
             let all nodes use {provider} alone"
    )]
    Atomics {
        /// Number of the node.
        node: u16,
        /// Name of the provider.
        provider: String,
    },
    /// Memory of a peer holds bytes that this version does not write.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The host could not be started.
    #[error("cannot lend memory: {0}")]
    Host(String),
    /// The seed does not answer.
    #[error("cannot join through {seed}: {reason}; name another node of the list")]
    Seed {
        /// Address of the seed.
        seed: String,
        /// Why.
        reason: String,
    },
    /// The seed refused the node that joins.
    #[error("the seed refused this node: {0}")]
    Refused(String),
    /// A listed node cannot leave, because it has a part of the index.
    #[error("node {node} is in the list and has a part of the index: only nodes that joined can leave")]
    Listed {
        /// Number of this node.
        node: u16,
    },
    /// A node that leaves stores no values.
    #[error("node {node} leaves, and stores no values: use another node")]
    Leaving {
        /// Number of the node.
        node: u16,
    },
    /// The values of a node that leaves found no place at other nodes.
    #[error("{left} values cannot be moved: the tables of the other nodes or the slots of the keys are full")]
    Stays {
        /// Number of these values.
        left: usize,
    },
    /// A local node refused or failed a command.
    #[error("{0}")]
    Command(String),
}

impl NessieError {
    /// Returns the number of the error, which scripts can rely on.
    pub fn code(&self) -> u16 {
        match self {
            NessieError::InvalidOption(_) => 1,
            NessieError::Members(_) => 2,
            NessieError::TooLong { .. } => 3,
            NessieError::IndexFull => 4,
            NessieError::DataFull => 5,
            NessieError::Lost => 6,
            NessieError::Unreachable { .. } => 7,
            NessieError::TooLate(_) => 8,
            NessieError::NoMajority { .. } => 9,
            NessieError::Condemned { .. } => 10,
            NessieError::Mismatch { .. } => 11,
            NessieError::Atomics { .. } => 12,
            NessieError::Decode(_) => 13,
            NessieError::Host(_) => 14,
            NessieError::Command(_) => 15,
            NessieError::NoSlot => 16,
            NessieError::Seed { .. } => 17,
            NessieError::Refused(_) => 18,
            NessieError::Listed { .. } => 19,
            NessieError::Leaving { .. } => 20,
            NessieError::Stays { .. } => 21,
        }
    }

    /// Returns true if a repetition can succeed as things are.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            NessieError::Unreachable { .. } | NessieError::TooLate(_) | NessieError::NoMajority { .. }
        )
    }

    /// Returns true if a PUT or DELETE that failed so may take effect, now or later.
    pub fn outcome_unknown(&self) -> bool {
        self.is_retryable()
    }
}

impl From<HostError> for NessieError {
    fn from(e: HostError) -> NessieError {
        NessieError::Host(e.to_string())
    }
}

/// Returns the error of a node that cannot be connected to.
pub(crate) fn unreachable(node: u16, e: &ConnectError) -> NessieError {
    NessieError::Unreachable { node, reason: e.to_string() }
}

/// Returns the error of a request to a node.
pub(crate) fn failed(node: u16, e: &RequestError) -> NessieError {
    NessieError::Unreachable { node, reason: e.to_string() }
}
