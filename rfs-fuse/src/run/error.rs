//! The errors that end the program.

use std::{io, path::PathBuf};

use rdmabox::{KeyFileError, tls::TlsError};

use crate::{
    cli::UsageError,
    fuse::{SwitchError, TraceError, UnreportedLosses},
    mount::MountError,
    private_server,
};
use rfs_client::AttachError;
use rfs_status::metrics::EndpointError;

/// An error that ends the program.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error("cannot use TLS: {0}")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    PrivateServer(#[from] private_server::StartError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("{0}: the server accepted the connection but does not answer")]
    Silent(rdmabox::Address),
    #[error(
        "the kernel and rfs-fuse agree on no FUSE session: {0}: see dmesg, and whether the kernel is Linux 5.3 or later"
    )]
    Handshake(io::Error),
    #[error(transparent)]
    Switch(#[from] SwitchError),
    #[error("--io-uring=on: no FUSE over io_uring: {0}")]
    Ring(io::Error),
    #[error("{}: mounted, but it does not answer: {why}", path.display())]
    Dead { path: PathBuf, why: String },
    #[error("{what}: {source}")]
    Os { what: &'static str, source: io::Error },
    #[error("the FUSE session ended: {0}")]
    Ended(String),
    #[error("unmounted after a failure: {0}")]
    Failed(String),
    #[error("{}: unmounted, because no session with the server can follow the lost one: {reason}", path.display())]
    ServerLost { path: PathBuf, reason: String },
    #[error("cannot unmount {}: {source}", path.display())]
    Unmount { path: PathBuf, source: io::Error },
    #[error(transparent)]
    WriteBack(#[from] WriteBackError),
    #[error("--takeover does not go with {with}: {why}")]
    Takeover { with: &'static str, why: &'static str },
    #[error("{0}")]
    Caretaker(String),
    #[error(transparent)]
    Metrics(#[from] EndpointError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Lost(#[from] UnreportedLosses),
}

/// Returns a function that wraps an error of the operating system.
pub(super) fn os(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |source| RunError::Os { what, source }
}

/// Data that the kernel has cached may not have reached the server.
#[derive(Debug, thiserror::Error)]
#[error("{}: recent writes of programs may be lost: {why}", path.display())]
pub(super) struct WriteBackError {
    pub(super) path: PathBuf,
    pub(super) why: String,
}
