//! Why a trial could not run to its end.

/// The reason why a trial could not run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A program failed, or a signal ended the trial.
    #[error(transparent)]
    Program(#[from] measure::Error),
    /// An operation of the trial itself failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
    /// The machine or the user's rights lack something that the trial needs.
    #[error("cannot be tried here: {0}")]
    Missing(String),
    /// The state differs from the expected state.
    #[error("{0}")]
    Wrong(String),
}

impl Error {
    /// Returns a closure for `map_err` that adds the failed operation to an I/O error.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { what, source }
    }
}

/// The result of a part of a trial.
pub(crate) type Result<T> = std::result::Result<T, Error>;
