//! Errors of swap areas.
//!
//! # Concurrency
//! Plain values.

use std::{io, path::PathBuf, process::ExitStatus};

/// Why a swap area could not be made or ended. Everything that was made is undone or stays usable.
#[derive(Debug, thiserror::Error)]
pub(super) enum SwapError {
    /// A system call failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Os { what: &'static str, path: PathBuf, source: io::Error },
    /// rfs-fuse is not where it should be.
    #[error("{} is missing: build rfs-fuse, or give --fuse", .0.display())]
    NoFuse(PathBuf),
    /// rfs-fuse did not mount.
    #[error("rfs-fuse ended with {0} before it had mounted the server")]
    NotMounted(ExitStatus),
    /// rfs-fuse did not mount in time.
    #[error("rfs-fuse has not mounted the server after {0} s")]
    Timeout(u64),
    /// A signal came before the area was complete.
    #[error("stopped by a signal")]
    Stopped,
    /// The size has too few pages, or too many.
    #[error("a swap area has {0} bytes: allowed are 64 KiB to 16 TiB")]
    Size(u64),
}

/// Makes an error of a system call.
pub(super) fn os(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> SwapError {
    move |source| SwapError::Os { what, path: path.into(), source }
}
