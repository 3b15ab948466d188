//! Ends a mount whose serving program cannot be replaced.
//!
//! # Concurrency
//! The main thread of the caretaker.

use std::{io, path::Path};

use super::message::HeldMount;
use crate::mount::{ActiveMount, end_by_force};
use rfs_client::DetachParams;

/// Ends the connection with the kernel, unmounts, and detaches the mount from its server.
pub(super) fn end_mount(mount: &HeldMount) -> io::Result<()> {
    let Some(mounted) = ActiveMount::named(&mount.path, mount.device.clone(), &mount.maker) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if let Some(control) = mounted.control_path() {
        // The serving program has left it.
        std::fs::remove_file::<&Path>(&control).ok();
    }
    let ended = end_by_force(&mounted, mount.leaves);
    if let Some(detach) = mount.detach.as_deref().and_then(DetachParams::from_text) {
        detach.detach();
    }
    ended
}
