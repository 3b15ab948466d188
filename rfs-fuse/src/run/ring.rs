//! The choice between `/dev/fuse` and io_uring.

use super::error::RunError;
use crate::{
    cli::{Args, IoUring},
    fuse::Ring,
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
