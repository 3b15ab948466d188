//! Errors of the program. Each prints as one line.

use rdmabox::{ConnectError, HostError, MemoryError, RequestError};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A reason why the measurement failed. `Display` is the one line that the user sees.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options, children, files, signals.
    #[error(transparent)]
    Measure(#[from] measure::Error),
    /// A server cannot be reached.
    #[error("cannot connect: {0}")]
    Connect(#[from] ConnectError),
    /// A request of the load failed, so the run has no valid result.
    #[error("a request failed: {0}")]
    Request(#[from] RequestError),
    /// This process cannot run a server.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The memory to export could not be allocated.
    #[error("no memory to lend: {0}")]
    Memory(#[from] MemoryError),
    /// The peer is not a server of this program and version.
    #[error("{0} is not an rdmabox-bench server of this version")]
    Stranger(String),
    /// Shapes of the paper do not hold, and are no known exceptions.
    #[error("{} of the paper do not hold on the model, and are not in the file of --check:\n{}", count(.0.len()), .0.join("\n"))]
    Shapes(Vec<String>),
    /// The result is inconsistent.
    #[error("wrong result: {0}")]
    Wrong(String),
}

fn count(rows: usize) -> String {
    if rows == 1 { "1 shape".into() } else { format!("{rows} shapes") }
}

impl Error {
    /// Returns an error for invalid options.
    pub fn usage(text: impl Into<String>) -> Self {
        measure::Error::Usage(text.into()).into()
    }

    /// Returns the exit status of a program that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Measure(err) => err.exit_code(),
            _ => 1,
        }
    }
}
