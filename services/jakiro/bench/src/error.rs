//! Errors of the benchmark.
//!
//! # Concurrency
//! Plain values.

use jakiro::ClientError;
use rdmabox::provider::model::ParameterError;

/// Why a figure could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A server or a client of a system failed.
    #[error("{system}: {reason}")]
    Peer {
        /// The system.
        system: &'static str,
        /// The reason.
        reason: String,
    },
    /// A client of the store failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The constants of a modelled card cannot be read.
    #[error(transparent)]
    Card(#[from] ParameterError),
    /// A device that is no modelled card.
    #[error("--device {0}: choose model:cx3, or model: and the path of a file of constants")]
    Device(String),
    /// A result has another value than the store should have.
    #[error("{0}: a get returned a wrong value")]
    WrongValue(&'static str),
    /// A thread of a load panicked.
    #[error("a thread of the load panicked")]
    Thread,
    /// The results cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn peer(system: &'static str, reason: &dyn std::fmt::Display) -> Error {
        Error::Peer { system, reason: reason.to_string() }
    }
}
