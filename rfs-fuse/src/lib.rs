//! `rfs-fuse` mounts the memory of an rfs-server as a POSIX file system.
//!
//! [`fuse`] translates requests of the kernel into operations of [`rfs_client`], which has the
//! file logic. [`mount`] mounts and unmounts. [`null`] is a file system in local memory, for
//! measurements of FUSE itself. [`run`] is the program. `docs/semantics` has the guarantees for
//! users of a mount.

pub mod cli;
mod daemon;
pub mod fuse;
pub mod mount;
pub mod mount8;
pub mod null;
mod private_server;
pub mod run;
mod scrub;
mod status;
