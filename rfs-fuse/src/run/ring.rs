//! The choice between `/dev/fuse` and io_uring, and the devices of session threads.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::error::{RunError, os};
use crate::{
    cli::{Args, IoUring},
    fuse::{Ring, clone_of},
};

/// Returns true if `--io-uring=on`, or if it is `auto` and the kernel offers io_uring.
fn takes_ring(args: &Args) -> bool {
    if args.takeover {
        return false;
    }
    match args.io_uring() {
        IoUring::Auto => Ring::is_offered(),
        IoUring::On => true,
        IoUring::Off => false,
    }
}

/// Prepares the threads of a ring if the mount uses one. With `--io-uring=on`, enables io_uring
/// in the kernel.
///
/// # Errors
/// With `--io-uring=on`, if the kernel has no ring for the mount.
pub(super) fn prepare_ring(args: &Args) -> Result<Option<Ring>, RunError> {
    let insists = args.io_uring() == IoUring::On;
    if insists {
        Ring::switch_on()?;
    }
    if !takes_ring(args) {
        return Ok(None);
    }
    match Ring::prepare(args.threads(), &args.settings()) {
        Ok(ring) => Ok(Some(ring)),
        Err(e) if insists => Err(RunError::Ring(e)),
        Err(e) => {
            log::warn!("the kernel offers FUSE over io_uring, but requests come over /dev/fuse: {e}");
            Ok(None)
        }
    }
}

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
