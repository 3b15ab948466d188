//! `rfs-fuse` mounts the memory of an rfs-server as a POSIX file system.
//!
//! [`client`] is the file logic without FUSE: it sends calls for names, and reads data and
//! attributes one-sidedly. [`fuse`] translates requests of the kernel into client operations.
//! [`mount`] mounts and unmounts. [`null`] is a file system in local memory, for measurements of
//! FUSE itself. [`run`] is the program. `docs/semantics` has the guarantees for users of a mount.

pub mod cli;
pub mod client;
mod daemon;
pub mod fuse;
pub mod mount;
pub mod mount8;
pub mod null;
mod private_server;
pub mod run;
mod scrub;
