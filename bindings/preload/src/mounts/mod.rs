//! Mounts of rfs-fuse that this process has files of.

pub(crate) mod id;
pub(crate) mod known;
pub(crate) mod site;
