//! The inodes that a mount knows, and their names: the part that a kernel's caches have in a mount.

pub(crate) mod names;
pub(crate) mod nodes;
