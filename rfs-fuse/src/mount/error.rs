//! The error of a failed mount.

use std::path::PathBuf;

/// Path of the FUSE device.
pub const DEVICE: &str = "/dev/fuse";

/// Message if fusermount3 is missing.
pub(super) const NO_HELPER: &str =
    "fusermount3 is not installed: install the package fuse3, or mount as root";

/// A failed mount. The message is one line.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is not usable.
    #[error("{}: {why}", path.display())]
    Point {
        /// Path of the mount point, as the user gave it.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The descriptor of a mount that another program has made is not usable.
    #[error("{}: {why}", path.display())]
    HandedOver {
        /// Name of the descriptor, as the user gave it.
        path: PathBuf,
        /// The reason, and the next step.
        why: String,
    },
    /// There is no usable FUSE device.
    #[error("{DEVICE}: {why}")]
    Device {
        /// The reason.
        why: String,
    },
    /// The user is not root, and fusermount3 is missing.
    #[error("{NO_HELPER}")]
    Helper,
    /// The kernel or fusermount3 has refused the mount.
    #[error("cannot mount on {}: {why}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The reason, and the next step.
        why: String,
    },
}
