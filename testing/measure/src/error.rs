//! Errors that end a run. Each prints as one line.

use std::{io, path::PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A reason for the early end of a run. `Display` is the one line that the user sees.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option, or a combination of options, is invalid on this machine.
    #[error("{0}")]
    Usage(String),
    /// A signal asked the program to end.
    #[error("interrupted")]
    Interrupted(i32),
    /// A program did not start.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// The reason.
        source: io::Error,
    },
    /// A child ended or stayed silent before it became ready or produced its result.
    #[error("{program}: {what}")]
    Child {
        /// The program.
        program: String,
        /// The event, followed by the last lines of the child's output.
        what: String,
    },
    /// An operation on a file or directory of the program failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A program printed output in an unexpected format.
    #[error("cannot read the output of {program}: {what}")]
    Parse {
        /// The program.
        program: String,
        /// The expected output.
        what: String,
    },
    /// A mount, a process or a directory could not be removed.
    #[error("left behind: {0}")]
    LeftBehind(String),
}

impl Error {
    /// Returns a closure for `map_err` that adds the path to the error of a file operation.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// Returns the exit status of a program that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(130),
            _ => 1,
        }
    }
}
