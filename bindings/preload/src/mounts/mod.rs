//! Mounts of rfs-fuse that this process has files of.

pub(crate) mod id;
pub(crate) mod known_mounts;
pub(crate) mod site;
