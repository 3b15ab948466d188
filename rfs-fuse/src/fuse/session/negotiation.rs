//! The negotiation with the kernel (INIT), which fuser makes.
//!
//! fuser's session ends before the first request: the threads of [`device`](super::device) and of
//! [`ring`](super::ring) serve the connection. fuser passes neither TMPFILE nor STATX nor
//! INTERRUPT on, and its replies go over `/dev/fuse` only.
//!
//! # Concurrency
//! The main thread.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock},
};

use fuser::{Config, InitFlags, KernelConfig, Session, SessionACL};

use super::Filesystem;

/// Result of the negotiation with the kernel.
#[derive(Debug)]
pub struct Negotiation<F> {
    /// The file system, which serves requests from now on.
    pub filesystem: Arc<F>,
    /// True if the kernel expects a ring. It sends no request until the ring is registered.
    pub ring: bool,
}

/// Negotiates with the kernel behind `device`. `wants_ring`: threads for a ring are ready.
///
/// # Errors
/// The kernel's protocol is too old, or the connection has ended.
pub fn negotiate<F: Filesystem>(
    filesystem: F,
    device: OwnedFd,
    wants_ring: bool,
) -> io::Result<Negotiation<F>> {
    let agreed = Arc::new(OnceLock::new());
    let negotiator = Negotiator { fresh: Some(filesystem), wants_ring, agreed: Arc::clone(&agreed) };
    // fuser needs the rest of its options only for its own threads.
    drop(Session::from_fd(negotiator, device, SessionACL::All, Config::default())?);
    Arc::into_inner(agreed).and_then(OnceLock::into_inner).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A file system of fuser that only negotiates.
struct Negotiator<F> {
    /// The file system, until `init` has moved it to `agreed`.
    fresh: Option<F>,
    wants_ring: bool,
    agreed: Arc<OnceLock<Negotiation<F>>>,
}

impl<F: Filesystem> fuser::Filesystem for Negotiator<F> {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut filesystem = self.fresh.take().ok_or(io::ErrorKind::AlreadyExists)?;
        filesystem.init(config);
        // The kernel offers this only if root has enabled it.
        let ring = self.wants_ring && config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
        let agreed = Negotiation { filesystem: Arc::new(filesystem), ring };
        self.agreed.set(agreed).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }
}
