//! What can go wrong, one line each.

use rdmabox::{ConnectError, HostError, MemoryError, RequestError};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A reason why nothing, or nothing more, was measured. `Display` is the one line that the user sees.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options, children, files, signals.
    #[error(transparent)]
    Measure(#[from] measure::Error),
    /// A server cannot be reached.
    #[error("cannot connect: {0}")]
    Connect(#[from] ConnectError),
    /// A request of the load failed; the run is worth nothing.
    #[error("a request failed: {0}")]
    Request(#[from] RequestError),
    /// This process cannot serve.
    #[error(transparent)]
    Host(#[from] HostError),
    /// No memory to lend.
    #[error("no memory to lend: {0}")]
    Memory(#[from] MemoryError),
    /// What answers is no server of this program.
    #[error("{0} is no rdmabox-bench server of this version")]
    Stranger(String),
    /// The result contradicts itself.
    #[error("wrong result: {0}")]
    Wrong(String),
}

impl Error {
    /// Options that make no sense.
    pub fn usage(text: impl Into<String>) -> Self {
        measure::Error::Usage(text.into()).into()
    }

    /// Exit status of a program that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Measure(err) => err.exit_code(),
            _ => 1,
        }
    }
}
