//! The lender's host and its service.
//!
//! [`Lender::listen`] exports one piece of shared memory as a whole. A chunk is reserved when it is
//! lent, so a machine without memory refuses the chunk instead of the first WRITE. A returned
//! chunk is wiped before the next session gets it.
//!
//! # Concurrency
//! Threads of the host call [`Service`]. One lock guards the allocator; no call blocks under it.

use std::sync::Arc;

use parking_lot::Mutex;
use rdmabox::{
    Access, Address, CallError, Export, Grant, Host, HostError, HostHandle, Key, Memory, MemoryError, Peer,
    Reply, Service, tls::TlsServer,
};

use super::{
    allocator::Allocator,
    protocol::{self, Answer, LenderStatus, Request},
};
use crate::logic::layout::CHUNK;

/// Memory that this process lends to pagers, until it is dropped.
#[derive(Debug)]
pub struct Lender {
    host: HostHandle,
    lending: Arc<Lending>,
}

/// Settings of a lender.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LenderOptions {
    /// Bytes to lend, rounded down to whole chunks of 1 MiB.
    pub memory: u64,
    /// TLS for streams over TCP.
    pub tls: Option<Arc<TlsServer>>,
    /// Keys of pagers. Every pager with a key reaches all of the lent memory.
    pub keys: Vec<Key>,
    /// Lends to every program that reaches a network address, if there are no keys.
    pub allow_without_keys: bool,
}

impl LenderOptions {
    /// Lends `memory` bytes, without TLS and keys: to programs of this user and of root on this
    /// machine, through Unix sockets.
    pub fn new(memory: u64) -> LenderOptions {
        LenderOptions { memory, tls: None, keys: Vec::new(), allow_without_keys: false }
    }

    /// Sets the keys of pagers.
    pub fn keys(mut self, keys: Vec<Key>) -> LenderOptions {
        self.keys = keys;
        self
    }

    /// Permits network addresses without keys.
    pub fn allow_without_keys(mut self, allow: bool) -> LenderOptions {
        self.allow_without_keys = allow;
        self
    }

    /// Sets TLS for streams over TCP.
    pub fn tls(mut self, tls: Arc<TlsServer>) -> LenderOptions {
        self.tls = Some(tls);
        self
    }

    /// Makes the checks of [`Lender::listen`] before it takes memory and ports.
    ///
    /// # Errors
    /// [`LenderError::Size`] or [`LenderError::WithoutKeys`].
    pub fn check(&self, addresses: &[Address]) -> Result<(), LenderError> {
        self.chunks()?;
        let needs_keys = self.keys.is_empty() && !self.allow_without_keys;
        match addresses.iter().find(|address| needs_keys && address.is_network()) {
            Some(address) => Err(LenderError::WithoutKeys(address.clone())),
            None => Ok(()),
        }
    }

    /// Returns the number of chunks and of their bytes.
    fn chunks(&self) -> Result<(u32, usize), LenderError> {
        let wrong = || LenderError::Size(self.memory);
        let chunks = u32::try_from(self.memory / CHUNK as u64).map_err(|_| wrong())?;
        let len = usize::try_from(self.memory).map_err(|_| wrong())? / CHUNK * CHUNK;
        if chunks == 0 { Err(wrong()) } else { Ok((chunks, len)) }
    }
}

/// Why a lender did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LenderError {
    /// Less than a chunk, or more than this machine can address.
    #[error("cannot lend {0} bytes: the smallest amount is 1 MiB, the largest 4 PiB")]
    Size(u64),
    /// A network address, and no keys.
    #[error(
        "{0} is a network address, and without keys every program that reaches it can read and write the lent \
         memory: give keys, or allow it"
    )]
    WithoutKeys(Address),
    /// The memory could not be made.
    #[error("cannot make the memory to lend: {0}")]
    Memory(#[from] MemoryError),
    /// The host could not listen.
    #[error(transparent)]
    Host(#[from] HostError),
}

#[derive(Debug)]
struct Lending {
    /// For local sessions without a key.
    export: Export,
    /// For sessions with a key.
    keyed: Option<Export>,
    allocator: Mutex<Allocator>,
}

impl Lender {
    /// Starts to lend memory at these addresses.
    ///
    /// # Errors
    /// As [`LenderError`] says; nothing is left behind.
    pub fn listen(addresses: &[Address], options: &LenderOptions) -> Result<Lender, LenderError> {
        options.check(addresses)?;
        let (chunks, len) = options.chunks()?;
        let mut host = Host::new()?.any_local_user(options.allow_without_keys);
        if let Some(tls) = &options.tls {
            host = host.tls(Arc::clone(tls));
        }
        let memory = Arc::new(Memory::shared("rfs-paging-lent", len)?);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let export = host.export(&memory, access)?;
        let mut keyed = None;
        if !options.keys.is_empty() {
            let domain = host.domain()?;
            keyed = Some(host.export_in(domain, &memory, access)?);
            host = host.keys(Grant::keyring(&options.keys, domain));
        }
        let lending = Arc::new(Lending { export, keyed, allocator: Mutex::new(Allocator::new(chunks)) });
        let host = host.listen(addresses, Arc::clone(&lending) as Arc<dyn Service>)?;
        Ok(Lender { host, lending })
    }

    /// Returns the addresses at which pagers reach this lender, with the ports that were chosen.
    pub fn addresses(&self) -> &[Address] {
        self.host.addresses()
    }

    /// Returns the number of chunks, and of those that sessions have.
    pub fn status(&self) -> LenderStatus {
        self.lending.status()
    }
}

impl Lending {
    fn status(&self) -> LenderStatus {
        let allocator = self.allocator.lock();
        LenderStatus {
            chunk_bytes: CHUNK as u64,
            chunks: allocator.capacity(),
            free_chunks: allocator.free(),
            borrowers: allocator.borrowers(),
        }
    }

    fn allocate(&self, peer: &Peer) -> Answer {
        let Some(chunk) = self.allocator.lock().lend(peer.id()) else { return Answer::Full };
        let offset = u64::from(chunk) * CHUNK as u64;
        if let Err(error) = self.export.memory().reserve_range(offset as usize, CHUNK) {
            log::warn!("no memory for chunk {chunk}: {error}");
            self.give_back(peer.id(), chunk);
            return Answer::Full;
        }
        let export = self.keyed.as_ref().filter(|_| peer.key().is_some()).unwrap_or(&self.export);
        match peer.remote_mr(export).slice(offset..offset + CHUNK as u64) {
            Ok(memory) => Answer::Chunk(chunk, memory.to_le_bytes()),
            Err(error) => {
                log::error!("chunk {chunk} is not in the export: {error}");
                self.give_back(peer.id(), chunk);
                Answer::Full
            }
        }
    }

    /// Returns false if the session does not have the chunk.
    fn give_back(&self, session: u64, chunk: u32) -> bool {
        let had = self.allocator.lock().retire(session, chunk);
        if had {
            self.wipe(chunk);
        }
        had
    }

    /// Wipes a retired chunk, so that the next session finds no bytes of this one.
    fn wipe(&self, chunk: u32) {
        match self.export.memory().discard(chunk as usize * CHUNK, CHUNK) {
            Ok(()) => self.allocator.lock().reclaim(chunk),
            Err(error) => log::error!("chunk {chunk} cannot be wiped, and is lent no more: {error}"),
        }
    }
}

impl Service for Lending {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        let answer = match protocol::decode(request) {
            Some(Request::Allocate) => self.allocate(peer),
            Some(Request::Free(chunks)) => {
                if !chunks.into_iter().all(|chunk| self.give_back(peer.id(), chunk)) {
                    return Err(CallError::EndSession("freed a chunk that it does not have".into()));
                }
                Answer::Freed
            }
            Some(Request::Status) => Answer::Status(self.status()),
            None => return Err("not a request of this version of the paging service".into()),
        };
        protocol::encode(&answer, reply);
        Ok(())
    }

    fn disconnected(&self, peer: &Peer) {
        let chunks = self.allocator.lock().retire_all(peer.id());
        if !chunks.is_empty() {
            log::info!("session {} ended, and returned {} chunks", peer.id(), chunks.len());
        }
        chunks.into_iter().for_each(|chunk| self.wipe(chunk));
    }
}

#[cfg(test)]
mod tests {
    use rdmabox::Session;

    use super::*;

    /// Catches a lender that hands on the bytes of another pager: with chunks that it gave back,
    /// and with those of a session that ended.
    #[test]
    fn a_fresh_chunk_is_zero_for_a_client_without_a_pager() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let options = LenderOptions::new(2 * CHUNK as u64).allow_without_keys(true);
        let lender = Lender::listen(&[address], &options).expect("a lender");
        let mut bytes = vec![0; CHUNK];
        for round in 0..3 {
            let session = Session::builder().connect(&lender.addresses()[0]).expect("a session");
            for turn in 0..2 {
                let mut numbers = Vec::new();
                while let Some(chunk) = protocol::allocate(&session, CHUNK).expect("an answer") {
                    session
                        .read(chunk.memory.for_read(0, CHUNK).expect("a range"), &mut bytes)
                        .expect("bytes");
                    assert!(bytes.iter().all(|byte| *byte == 0), "round {round}, turn {turn}");
                    bytes.fill(7);
                    session
                        .write(chunk.memory.for_write(0, CHUNK).expect("a range"), &bytes)
                        .expect("no error");
                    numbers.push(chunk.number);
                }
                assert_eq!(numbers.len(), 2);
                if turn == 0 {
                    protocol::call(&session, &Request::Free(numbers)).expect("an answer");
                }
            }
            drop(session);
            let begin = std::time::Instant::now();
            while lender.status().free_chunks < 2 {
                assert!(begin.elapsed().as_secs() < 10, "the end of the session frees its chunks");
                std::thread::yield_now();
            }
        }
    }
}
