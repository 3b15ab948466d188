//! Options of an attach, and the reasons for which it fails.

use std::time::Duration;

use rdmabox::{Address, ConnectError};

use crate::{error::ClientError, inode::access::AccessTimes};

/// Options of an attach.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AttachOptions {
    /// Name of the export; empty for the server's first one.
    pub export: String,
    /// True if the client may cache. A thread must then run [`obey`](crate::Recalls::obey).
    pub caches: bool,
    /// Rule for accesses of files.
    pub access_times: AccessTimes,
    /// Rule for accesses of directories.
    pub directory_access_times: AccessTimes,
    /// True if no other session may use the export meanwhile.
    pub exclusive: bool,
    /// True if the export must have checksums.
    pub needs_checksums: bool,
    /// Time for which to retry while other sessions keep this one out.
    pub busy_timeout: Duration,
    /// True if the client reconnects after a loss of the session. Operations wait meanwhile, within
    /// their usual limits.
    pub reconnects: bool,
    /// The directory that the caller serves, for the server's status; empty if there is none.
    pub mount_point: String,
    /// True if the next process takes the session over when this process ends.
    pub outlives_process: bool,
}

/// The reason why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The connection failed.
    #[error("cannot connect to {0}")]
    Connect(#[from] ConnectError),
    /// The system has no random numbers.
    #[error("getrandom failed: {0}")]
    Random(String),
    /// The key is read-only, and writing back needs to write.
    #[error("{address}: this key is read-only; --cache writeback needs write access")]
    ReadOnlyKey {
        /// The server's address.
        address: Address,
    },
    /// The server refused to attach, or is no rfs-server.
    #[error("{address}: cannot attach: {source}")]
    Attach {
        /// The server's address.
        address: Address,
        /// The error of the attach.
        source: ClientError,
    },
    /// The key is for another export.
    #[error("{address}: the key does not open the export {export:?}")]
    Key {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
    /// The server has no such export.
    #[error("{address}: there is no export named {export:?}")]
    Export {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
    /// Other sessions use the export, and this session demands exclusive use.
    #[error(
        "{address}: {} is in use by {sessions} other mount{}, and --cache writeback needs it to itself: use --cache auto",
        export_name(export), if *sessions == 1 { "" } else { "s" }
    )]
    NotAlone {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
        /// Number of other sessions.
        sessions: u64,
    },
    /// The server removes files of the export by itself, and this session demands exclusive use.
    #[error(
        "{address}: {} is a cache (evict= or ttl=), whose files the server removes, and --cache writeback needs it to itself: use --cache auto",
        export_name(export)
    )]
    Evicting {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
    /// The export has no checksums.
    #[error(
        "{address}: {} has no checksums, which --checksum asks for: start the server with --checksum",
        export_name(export)
    )]
    Unchecked {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
    /// Another session has exclusive use of the export.
    #[error(
        "{address}: {} is mounted with --cache writeback elsewhere, which excludes other mounts",
        export_name(export)
    )]
    Taken {
        /// The server's address.
        address: Address,
        /// Name of the requested export.
        export: String,
    },
}

/// Names an export for users.
fn export_name(export: &str) -> String {
    if export.is_empty() { "its first export".into() } else { format!("the export {export:?}") }
}
