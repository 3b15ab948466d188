//! A service that only lends memory.

use std::sync::Arc;

use super::{Address, Export, Host, HostError, Peer, Reply, RequestError, Running, Service, Session};
use crate::{
    memory::Memory,
    verbs::{Access, RemoteAddr},
};

/// In front of every answer, so that another service's is not taken for one.
const MAGIC: [u8; 8] = *b"rdmalend";

/// A service for hosts that lend a piece of memory and do nothing else: every call is answered with where that memory
/// is, which [`locate`](Self::locate) asks for.
///
/// All clients may read and write all of it.
#[derive(Debug)]
pub struct Lender {
    export: Export,
}

/// What a [`Lender`] lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Its first byte.
    pub base: RemoteAddr,
    /// How many bytes there are.
    pub len: u64,
}

impl Lender {
    /// Lends what is exported.
    pub fn new(export: Export) -> Lender {
        Lender { export }
    }

    /// A host that lends `len` zeroed bytes at these addresses: [`Host::new`], [`Host::export`] and [`Host::listen`] in
    /// one.
    pub fn listen(addresses: &[Address], len: usize) -> Result<Running, HostError> {
        let host = Host::new()?;
        let memory = Memory::shared("rdmabox-lent", len)?;
        let export = host.export(&Arc::new(memory), Access::REMOTE_ALL)?;
        host.listen(addresses, Arc::new(Lender::new(export)))
    }

    /// Asks the host for the memory that it lends.
    ///
    /// # Errors
    /// Those of [`Session::call`], and [`RequestError::Invalid`] if the service there is no `Lender`.
    pub fn locate(session: &Session) -> Result<RemoteMemory, RequestError> {
        let mut reply = Vec::new();
        session.call(&MAGIC, &mut reply)?;
        decode(&reply).ok_or_else(|| RequestError::Invalid("the service there is no lender".into()))
    }
}

impl Service for Lender {
    fn call(&self, peer: &Peer, _request: &[u8], reply: &mut Reply<'_>) -> Result<(), String> {
        let lent =
            RemoteMemory { base: peer.remote_addr(&self.export), len: self.export.memory().len() as u64 };
        encode(lent, reply);
        Ok(())
    }
}

fn encode(lent: RemoteMemory, reply: &mut Vec<u8>) {
    reply.extend_from_slice(&MAGIC);
    reply.extend_from_slice(&lent.base.to_le_bytes());
    reply.extend_from_slice(&lent.len.to_le_bytes());
}

fn decode(reply: &[u8]) -> Option<RemoteMemory> {
    let (base, len) = reply.strip_prefix(&MAGIC)?.split_first_chunk()?;
    Some(RemoteMemory {
        base: RemoteAddr::from_le_bytes(*base),
        len: u64::from_le_bytes(len.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_and_others_are_not() {
        let lent = RemoteMemory { base: RemoteAddr { addr: 0x1234_5678_9abc, rkey: 77 }, len: 1 << 40 };
        let mut reply = Vec::new();
        encode(lent, &mut reply);
        assert_eq!(decode(&reply), Some(lent));
        for wrong in [&[][..], &reply[1..], &reply[..27], &[&reply[..], &[0]].concat()] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
