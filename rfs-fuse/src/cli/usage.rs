//! The error of an invalid combination of arguments.

/// An invalid combination of arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// The address or the mount point is missing.
    #[error("an address and a mount point are needed: rfs-fuse ADDRESS MOUNTPOINT (see rfs-fuse --help)")]
    Missing,
    /// The address is malformed.
    #[error("{0}")]
    Address(String),
    /// The address's provider cannot encrypt.
    #[error("--tls-ca is for servers at tcp:host:port: {0}")]
    Tls(&'static str),
}
