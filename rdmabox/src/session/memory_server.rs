//! A ready-made service that only exports memory.
//!
//! # Concurrency
//! [`MemoryServer`] is immutable; any number of threads may call it.

use std::sync::Arc;

use super::{
    address::Address,
    client::Session,
    error::HostError,
    host::{Export, Host, HostHandle, Peer, Service},
};
use crate::{
    error::RequestError,
    mapping::Memory,
    rpc::{CallError, Reply},
    verbs::{Access, RemoteMr},
};

/// Prefix of every answer. It tells this service's answers from those of other services.
const MAGIC: [u8; 8] = *b"rdmalend";

/// Service of hosts that only export one piece of memory. It answers every call with the address
/// of that memory, which [`locate`](Self::locate) requests.
///
/// All clients have the rights of the export: with [`listen`](Self::listen) to read, to write, and
/// to execute atomics. The crate's [front page](crate) has an example.
///
/// A host that was restarted lends new memory, all zero. A program with several copies fills it
/// again before it reads from it.
#[derive(Debug)]
pub struct MemoryServer {
    export: Export,
}

impl MemoryServer {
    /// Serves the given export.
    pub fn new(export: Export) -> MemoryServer {
        MemoryServer { export }
    }

    /// Starts a host that exports `len` zeroed bytes at these addresses: [`Host::new`],
    /// [`Host::export`] and [`Host::listen`] in one.
    ///
    /// The pages are not reserved: a length that the machine does not have is no error here. If the
    /// kernel cannot provide a page at its first use, it kills this process or a local client
    /// ([Memory that runs out](crate::guide#memory-that-runs-out)).
    ///
    /// Without addresses the host runs, and no client can reach it.
    ///
    /// # Errors
    /// As for these, and [`MemoryError::InvalidLength`](crate::MemoryError::InvalidLength) in
    /// [`HostError::Memory`] for no bytes. A retry is safe.
    pub fn listen(addresses: &[Address], len: usize) -> Result<HostHandle, HostError> {
        let host = Host::new()?;
        let memory = Memory::shared("rdmabox-lent", len)?;
        let export = host.export(&Arc::new(memory), Access::REMOTE_ALL)?;
        host.listen(addresses, Arc::new(MemoryServer::new(export)))
    }

    /// Asks the host for the address, the length and this client's rights of its memory.
    ///
    /// # Errors
    /// The errors of [`Session::call`], and [`RequestError::Invalid`] if the host's service is not
    /// a `MemoryServer`.
    pub fn locate(session: &Session) -> Result<RemoteMr, RequestError> {
        let mut reply = Vec::new();
        session.call(&MAGIC, &mut reply)?;
        decode(&reply).ok_or_else(|| RequestError::Invalid("the host's service is not a MemoryServer".into()))
    }
}

impl Service for MemoryServer {
    fn call(&self, peer: &Peer, _request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        encode(&peer.remote_mr(&self.export), reply);
        Ok(())
    }
}

fn encode(lent: &RemoteMr, reply: &mut Vec<u8>) {
    reply.extend_from_slice(&MAGIC);
    reply.extend_from_slice(&lent.to_le_bytes());
}

fn decode(reply: &[u8]) -> Option<RemoteMr> {
    RemoteMr::from_le_bytes(reply.strip_prefix(&MAGIC)?.try_into().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::RemoteAddr;

    #[test]
    fn the_answer_round_trips_and_other_answers_are_rejected() {
        let base = RemoteAddr { addr: 0x1234_5678_9abc, rkey: 77 };
        let lent = RemoteMr::new(base, 1 << 40, Access::REMOTE_ANY).expect("a range");
        let mut reply = Vec::new();
        encode(&lent, &mut reply);
        assert_eq!(decode(&reply), Some(lent));
        for wrong in [&[][..], &reply[1..], &reply[..31], &[&reply[..], &[0]].concat()] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
