//! Mounts of rfs-fuse, for programs beside them: the mount table, and the control sockets.

pub mod access;
pub mod sockets;
pub mod table;
