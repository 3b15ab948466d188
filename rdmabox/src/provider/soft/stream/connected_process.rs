//! The process at the other end of a Unix socket.
//!
//! # Concurrency
//! Immutable; any thread may use it.

use std::os::fd::OwnedFd;

/// The process of a peer on this host, as it was when it connected.
#[derive(Debug)]
pub struct ConnectedProcess {
    /// Its number.
    pub pid: i32,
    /// Its pidfd, which is never another process's.
    pub pidfd: OwnedFd,
}
