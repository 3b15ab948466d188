//! Submission of requests: one trait, and an implementation for each way of submission.
//!
//! Constructors allocate all lists. Submissions reuse them with new addresses and do not allocate.

mod blocking;
mod calls;
mod swaps;
mod transfers;

use std::sync::Arc;

use rdmabox::{RemoteAddr, RequestError, Session};

pub use blocking::Blocking;
pub use calls::Calls;
pub use swaps::Swaps;
pub use transfers::{Direction, Transfers};

use super::record::Record;

/// A session with a peer and the memory of the peer.
#[derive(Clone, Debug)]
pub struct Target {
    /// The session.
    pub session: Arc<Session>,
    /// Address of the peer's memory.
    pub base: RemoteAddr,
}

impl Target {
    /// Returns the address at an offset in bytes.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        self.base.at(offset)
    }
}

/// Submits the requests of one thread.
pub trait Requests {
    /// Returns the maximum number of requests per submission.
    fn takes(&self) -> usize;

    /// Makes room for a request at peer number `peer`. Returns the slot that it will take, a number
    /// below the depth. The default is for implementations whose [`submit`](Self::submit) blocks:
    /// requests take the slots from 0 on.
    fn free_slot(&mut self, peer: usize, record: &mut Record) -> Result<u64, RequestError> {
        let _ = (peer, record);
        Ok(0)
    }

    /// Submits a request for each of `offsets` at peer number `peer`. Returns when more requests
    /// may be submitted, possibly before these complete. Records the requests that have completed.
    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError>;

    /// Blocks until all requests have completed. The default does nothing, for implementations
    /// whose [`submit`](Self::submit) blocks.
    fn finish(&mut self, record: &mut Record) -> Result<(), RequestError> {
        let _ = record;
        Ok(())
    }
}

/// Placeholder for an address that is set before use.
const NOWHERE: RemoteAddr = RemoteAddr { addr: 0, rkey: 0 };
