//! The answer of a mount that lets programs reach its server without the kernel.
//!
//! The answer goes to root and to the user of the mount only, as all answers of a control socket. A
//! program with a session can read and write the whole export: the modes of files do not bind it.
//!
//! Copies of the key and of the TLS files come as descriptors with the answer. The program needs no
//! right to read the files, and need not see their paths.

use serde::{Deserialize, Serialize};

/// The question for the server of a mount.
pub const ACCESS: &str = "access";

/// The server of a mount, and all that a session of the mount's own user needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerAccess {
    /// The server's address.
    pub address: String,
    /// The provider on which the mount insists, if any.
    pub provider: Option<String>,
    /// Name of the export; empty for the server's first one.
    pub export: String,
    /// Identity of the export's memory. A session with other memory has other inodes.
    pub memory: String,
    /// Descriptor of the mount's key, by its index among those of the answer.
    pub key: Option<usize>,
    /// Files for TLS.
    pub tls: Option<TlsFiles>,
    /// Which reads change access times: `never`, `relative` or `always`.
    pub access_times: String,
    /// Maximum time of one operation on a silent server, in milliseconds.
    pub timeout_ms: u64,
    /// Maximum time to connect, in milliseconds.
    pub connect_timeout_ms: u64,
}

/// Files for TLS, by their indices among the descriptors of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// Certificates of the authorities.
    pub ca: usize,
    /// Name in the server's certificate, if it is not the host of the address.
    pub name: Option<String>,
    /// Certificate and private key of the client.
    pub own: Option<(usize, usize)>,
}
