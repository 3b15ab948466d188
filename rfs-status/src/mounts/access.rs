//! The answer of a mount that lets programs reach its server without the kernel.
//!
//! The answer goes to root and to the user of the mount only, as all answers of a control socket. A
//! program with a session can read and write the whole export: the modes of files do not bind it.

use std::path::PathBuf;

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
    /// File with the mount's key.
    pub key: Option<PathBuf>,
    /// Files for TLS.
    pub tls: Option<TlsFiles>,
    /// Which reads change access times: `never`, `relative` or `always`.
    pub access_times: String,
}

/// Files for TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// Certificates of the authorities.
    pub ca: PathBuf,
    /// Name in the server's certificate, if it is not the host of the address.
    pub name: Option<String>,
    /// Certificate and private key of the client.
    pub own: Option<(PathBuf, PathBuf)>,
}
