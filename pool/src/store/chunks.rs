//! Memory of the chunks of a store.
//!
//! Each chunk is a piece of shared memory of its own, so it can be returned to the system alone.
//! Its last page has the mark, a word after the bytes of the chunk. A chunk is reserved when it is
//! prepared: a machine without memory refuses the order, and no WRITE meets a missing page.
//!
//! # Concurrency
//! Plain values. The service has a lock around them. Memory is allocated without the lock.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, atomic::Ordering},
};

use rdmabox::{Access, Domain, Export, HostHandle, Memory, Peer, RemoteMr};

use crate::message::{MAX_CHUNKS, OrderError};

/// Length of the page with the mark.
const MARK_PAGE: usize = 4096;

/// Chunks that are prepared.
#[derive(Debug)]
pub(super) struct Chunks {
    maker: ChunkMaker,
    capacity: u64,
    next: u32,
    registrations: u64,
    chunks: BTreeMap<u32, Chunk>,
}

/// A registered piece of memory.
#[derive(Debug)]
pub(super) struct Chunk {
    export: Export,
    /// Offset of the mark.
    mark: usize,
}

/// Allocates and registers memory.
#[derive(Clone, Debug)]
pub(super) struct ChunkMaker {
    host: Weak<HostHandle>,
    domain: Domain,
}

impl ChunkMaker {
    /// Makes chunks of `bytes` bytes.
    pub(super) fn make(&self, count: u32, bytes: u64) -> Result<Vec<Chunk>, OrderError> {
        let none = |reason: String| OrderError::NoMemory(reason);
        let host = self.host.upgrade().ok_or_else(|| none("the store has stopped".into()))?;
        let mark = usize::try_from(bytes).map_err(|_| none(format!("a chunk of {bytes} bytes")))?;
        let len = mark.checked_add(MARK_PAGE).filter(|_| mark > 0 && mark.is_multiple_of(MARK_PAGE));
        let len = len.ok_or_else(|| none(format!("{bytes} bytes are not whole pages")))?;
        let mut chunks = Vec::new();
        for _ in 0..count {
            let memory = Memory::shared("pool-chunk", len).map_err(|error| none(error.to_string()))?;
            memory.reserve().map_err(|error| none(error.to_string()))?;
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let memory = Arc::new(memory);
            let export = host.export_range(self.domain, &memory, .., access);
            chunks.push(Chunk { export: export.map_err(|error| none(error.to_string()))?, mark });
        }
        Ok(chunks)
    }
}

impl Chunks {
    pub(super) fn new(host: Weak<HostHandle>, domain: Domain, capacity: u64) -> Chunks {
        let maker = ChunkMaker { host, domain };
        Chunks { maker, capacity, next: 0, registrations: 0, chunks: BTreeMap::new() }
    }

    /// Returns the maker, if `count` more chunks of `bytes` bytes are within the capacity.
    pub(super) fn maker(&self, count: u32, bytes: u64) -> Result<ChunkMaker, OrderError> {
        let held: u64 = self.chunks.values().map(|chunk| chunk.mark as u64).sum();
        let total = bytes.checked_mul(u64::from(count)).and_then(|more| more.checked_add(held));
        match total {
            Some(total) if total <= self.capacity => Ok(self.maker.clone()),
            _ => Err(OrderError::Capacity(self.capacity)),
        }
    }

    /// Enters chunks. Returns their numbers.
    pub(super) fn enter(&mut self, made: Vec<Chunk>) -> Vec<u32> {
        let first = self.next;
        for chunk in made {
            self.chunks.insert(self.next, chunk);
            self.registrations += 1;
            self.next = self.next.checked_add(1).expect("4 billion chunks take more than 16 TiB");
        }
        (first..self.next).collect()
    }

    /// Removes chunks, whose memory is free when the result is dropped.
    pub(super) fn remove(&mut self, numbers: &[u32]) -> Vec<Chunk> {
        numbers.iter().filter_map(|number| self.chunks.remove(number)).collect()
    }

    /// Stores a value in the marks.
    pub(super) fn mark(&self, numbers: &[u32], value: u64) -> Result<(), OrderError> {
        for number in numbers {
            let chunk = self.chunks.get(number).ok_or(OrderError::NoChunk(*number))?;
            chunk.export.memory().atomic_u64(chunk.mark).store(value, Ordering::Release);
        }
        Ok(())
    }

    /// Returns where the chunks are for a peer, or the number of one that does not exist.
    pub(super) fn locate(
        &self,
        peer: &Peer,
        numbers: &[u32],
    ) -> Result<Vec<[u8; RemoteMr::ENCODED_LEN]>, u32> {
        let of = |number: &u32| self.chunks.get(number).ok_or(*number);
        numbers.iter().map(|number| Ok(peer.remote_mr(&of(number)?.export).to_le_bytes())).collect()
    }

    /// Returns the numbers of chunks from `from` on, as many as fit into one message.
    pub(super) fn list(&self, from: u32) -> Vec<u32> {
        self.chunks.range(from..).map(|(number, _)| *number).take(MAX_CHUNKS).collect()
    }

    pub(super) fn len(&self) -> u32 {
        self.chunks.len() as u32
    }

    pub(super) fn registrations(&self) -> u64 {
        self.registrations
    }
}
