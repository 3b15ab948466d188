//! The status of a session, and of a lock request that waits.

use serde::{Deserialize, Serialize};

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    /// Name of the export.
    pub export: String,
    /// Number of the session.
    pub session: u64,
    /// Whether it has a connection.
    pub state: SessionState,
    /// Name of its host, in the words of the client; else the address of the connection.
    pub host: String,
    /// Address of the connection, or `this host`.
    pub address: String,
    /// Process ID on its host.
    pub pid: Option<u32>,
    /// User ID of the process.
    pub user: Option<u32>,
    /// Mount point, in the words of the client.
    pub mount_point: Option<String>,
    /// Program and version, in the words of the client.
    pub program: String,
    /// Provider: shm, tcp or rdma.
    pub provider: String,
    /// Transport and why it is this one, in the words of the client.
    pub transport: Option<String>,
    /// Cache mode: auto, none or writeback.
    pub cache: String,
    /// The session may change nothing.
    pub read_only: bool,
    /// Name of the key.
    pub key: Option<String>,
    /// Mapping of its users, such as `squash=root uid=65534 gid=65534`.
    pub squash: Option<String>,
    /// Time since the connection.
    pub connected_seconds: Option<f64>,
    /// Time since the client renewed its lease.
    pub silent_seconds: Option<f64>,
    /// Time since the loss of the connection.
    pub disconnected_seconds: Option<f64>,
    /// Number of requests, without those for recalls and grants.
    pub requests: u64,
    /// Number of locks and waiting lock requests.
    pub locks: u64,
    /// Recalls that it has not acknowledged.
    pub recalls: u64,
    /// Age of the first of them.
    pub oldest_recall_seconds: Option<f64>,
    /// Requests of other sessions that wait for its acknowledgement.
    pub holds_back: u64,
}

/// Whether a session has a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// It has a connection.
    #[default]
    Connected,
    /// It has lost its connection, and may be resumed.
    Disconnected,
    /// It is a session of a previous server, and may be resumed.
    Restored,
}

/// A lock request that waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockWaitStatus {
    /// Name of the export.
    pub export: String,
    /// Inode of the file.
    pub inode: u64,
    /// The session that waits.
    pub session: u64,
    /// Its process, in the words of the client.
    pub pid: u32,
    /// The request is for an exclusive lock.
    pub exclusive: bool,
    /// `record` (fcntl) or `flock`.
    pub class: String,
    /// First byte of the range.
    pub first: u64,
    /// Last byte of the range.
    pub last: u64,
    /// The session that has the lock; none if the request waits behind another one.
    pub holder_session: Option<u64>,
    /// The process that has the lock.
    pub holder_pid: Option<u32>,
}
