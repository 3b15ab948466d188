//! Errors of creating and mapping memory.

use std::io;

/// Maximum length of the name of a memfd in bytes: that of a file name, without `memfd:`.
pub(super) const MAX_NAME: usize = 249;

/// Reason why memory could not be created or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No memory has this length: it is zero, as that of an empty file, or more than `i64::MAX`.
    #[error("invalid length of memory, {len} bytes: choose at least 1 byte, and fewer than 2^63")]
    InvalidLength {
        /// The length in bytes.
        len: u64,
    },
    /// No shared memory can have this name.
    #[error("invalid name of memory, {name:?}: choose at most {MAX_NAME} bytes, and no NUL byte")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// The operating system refused a call.
    #[error("{what}: {source}")]
    Os {
        /// Name of the failed call.
        what: &'static str,
        /// Error that the call returned.
        source: io::Error,
    },
    /// A memory handle from a peer is not as announced. Only a client over shared memory gets it,
    /// while it connects.
    #[error("a memory handle from the peer is unusable: {0}")]
    BadHandle(&'static str),
}

/// Returns the last error of the system as the error of the call `what`.
pub(super) fn os(what: &'static str) -> MemoryError {
    MemoryError::Os { what, source: io::Error::last_os_error() }
}
