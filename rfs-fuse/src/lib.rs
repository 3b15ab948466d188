//! Files in the memory of an rfs-server.
//!
//! [`client`] is the file logic without FUSE: names by calls, data and attributes one-sidedly. [`fuse`] turns kernel
//! requests into client operations, [`mount`] makes and ends mounts, [`null`] is a file system in the process's own
//! memory to measure FUSE itself with, and [`run`] puts a program together from them.
//!
//! `SEMANTICS.md` beside this crate says what a user of a mount can rely on.

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
