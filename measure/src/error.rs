//! What can go wrong in a run, one line each.

use std::{io, path::PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A reason why a run ended early. `Display` is the one line that the user sees.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option, or a combination of options, that makes no sense on this machine.
    #[error("{0}")]
    Usage(String),
    /// A signal asked the harness to end.
    #[error("interrupted")]
    Interrupted(i32),
    /// A program could not be started.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A child ended or stayed silent where it should have become ready or produced a result.
    #[error("{program}: {what}")]
    Child {
        /// The program.
        program: String,
        /// What happened, with the last lines that it wrote.
        what: String,
    },
    /// An operation on a file or directory of the harness failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program printed something that is not its usual output.
    #[error("cannot read the output of {program}: {what}")]
    Parse {
        /// The program.
        program: String,
        /// What was expected.
        what: String,
    },
    /// Something could not be removed: a mount, a process or a directory.
    #[error("left behind: {0}")]
    LeftBehind(String),
}

impl Error {
    /// A closure for `map_err` that names the path of a failed file operation.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// Exit status of a harness that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(130),
            _ => 1,
        }
    }
}
