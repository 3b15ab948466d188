//! The error of an invalid combination of arguments.

use std::path::PathBuf;

/// An invalid combination of arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// The address or the mount point is missing.
    #[error("an address and a mount point are needed: rfs-fuse ADDRESS MOUNTPOINT (see rfs-fuse --help)")]
    Missing,
    /// The address is malformed.
    #[error("{0}")]
    Address(String),
    /// An option that only the program which mounts can take.
    #[error("{option} is for the program that mounts, and {} is a mount of another one: remove the option, and mount with it there", point.display())]
    ForMount {
        /// The option.
        option: &'static str,
        /// Name of the descriptor.
        point: PathBuf,
    },
    /// The address's provider cannot encrypt.
    #[error("--tls-ca is for servers at tcp:host:port: {0}")]
    Tls(&'static str),
}
