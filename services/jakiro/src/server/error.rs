//! Errors of a server.
//!
//! # Concurrency
//! Plain values.

use rdmabox::{Address, HostError};

use crate::store::SizeError;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The sizes do not fit each other or this machine.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A network address, and no keys.
    #[error(
        "{0} is a network address, and without keys every program that reaches it can read and change the \
         items: give keys, or allow it"
    )]
    WithoutKeys(Address),
    /// The partitions need more ports than there are behind the first.
    #[error("{0}: partitions use ports one after the other, up to 65535: choose a lower port")]
    Ports(Address),
    /// No address, or too many.
    #[error("{0} addresses: choose 1 to 8")]
    Addresses(usize),
    /// The address of a partition is too long for the protocol.
    #[error("{0} has more than 120 bytes: choose a shorter path or name")]
    LongAddress(Address),
    /// A host could not listen.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl ServerError {
    /// Returns the number of the kind of error.
    pub fn code(&self) -> u16 {
        match self {
            ServerError::Size(_) => 1,
            ServerError::WithoutKeys(_) => 2,
            ServerError::Ports(_) => 3,
            ServerError::Addresses(_) => 4,
            ServerError::Host(_) => 5,
            ServerError::LongAddress(_) => 6,
        }
    }
}
