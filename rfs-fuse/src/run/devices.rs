//! The devices of session threads.
//!
//! # Concurrency
//! The main thread.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::error::{RunError, os};
use crate::{cli::Args, fuse::clone_of};

/// Returns a device for each session thread, beginning with `own`. If `shared`, all threads use
/// `own`: a clone needs /dev/fuse, which the process may not reach without a right to mount.
pub(super) fn session_devices(
    args: &Args,
    own: &Arc<OwnedFd>,
    shared: bool,
) -> Result<Vec<Arc<OwnedFd>>, RunError> {
    let mut devices = vec![Arc::clone(own)];
    for _ in 1..args.threads() {
        devices.push(match shared {
            true => Arc::clone(own),
            false => Arc::new(clone_of(own.as_fd()).map_err(os("cannot reach the kernel"))?.into()),
        });
    }
    Ok(devices)
}
