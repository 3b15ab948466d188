//! Errors of creating and mapping memory.

use std::io;

/// Reason why memory could not be created or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The system does not have enough memory.
    #[error("cannot lend {asked} bytes: {available} bytes are available")]
    NotEnough {
        /// Bytes requested.
        asked: u64,
        /// Bytes that the system could provide.
        available: u64,
    },
    /// The operating system refused a call.
    #[error("{what}: {source}")]
    Os {
        /// Name of the failed call.
        what: &'static str,
        /// Error that the call returned.
        source: io::Error,
    },
    /// A memory handle from a peer is not as announced.
    #[error("a memory handle from the peer is unusable: {0}")]
    BadHandle(&'static str),
}

/// Returns the last error of the system as the error of the call `what`.
pub(super) fn os(what: &'static str) -> MemoryError {
    MemoryError::Os { what, source: io::Error::last_os_error() }
}
