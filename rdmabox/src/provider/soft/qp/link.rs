//! The connection of a queue pair.
//!
//! # Concurrency
//! Any thread may use it; the queue pair's locks order the bytes.

use std::time::Duration;

use crate::provider::soft::{memory::PeerMemory, stream::Socket};

/// Maximum time that a post waits for a memory handle that is in transit.
pub(crate) const HANDLE_WAIT: Duration = Duration::from_secs(2);

/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub socket: Socket,
    /// The peer's memory, if the peer is on this host and this side maps memory.
    pub peer: Option<PeerMemory>,
    /// True if the peers exchange memory handles, which both sides must do if one of them wants to.
    pub shares: bool,
}
