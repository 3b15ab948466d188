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

use rdmabox::{Access, Export, HostHandle, Memory, Peer, RemoteMr};

use super::options::Domains;
use crate::{
    message::{MAX_CHUNKS, OrderError},
    ticket::Ticket,
};

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
    /// The same memory for clients that may only read, if there can be some.
    read_only: Option<Export>,
    /// Offset of the mark.
    mark: usize,
}

/// Allocates and registers memory.
#[derive(Clone, Debug)]
pub(super) struct ChunkMaker {
    host: Weak<HostHandle>,
    domains: Domains,
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
            let lend = |domain, access| {
                host.export_range(domain, &memory, .., access).map_err(|error| none(error.to_string()))
            };
            let export = lend(self.domains.write, access)?;
            let read_only = self.domains.read.map(|domain| lend(domain, Access::REMOTE_READ)).transpose()?;
            chunks.push(Chunk { export, read_only, mark });
        }
        Ok(chunks)
    }
}

impl Chunks {
    pub(super) fn new(host: Weak<HostHandle>, domains: Domains, capacity: u64) -> Chunks {
        let maker = ChunkMaker { host, domains };
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

    /// Removes all chunks, whose memory is free when the result is dropped.
    pub(super) fn clear(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.chunks).into_values().collect()
    }

    /// Returns the memory of a chunk, if the range lies inside.
    pub(super) fn range(&self, number: u32, offset: u64, len: u64) -> Result<Arc<Memory>, OrderError> {
        let chunk = self.chunks.get(&number).ok_or(OrderError::NoChunk(number))?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= chunk.mark as u64);
        inside.then(|| Arc::clone(chunk.export.memory())).ok_or(OrderError::OutOfBounds)
    }

    /// Returns where the chunks are for a peer, or the number of one that does not exist.
    pub(super) fn locate(
        &self,
        peer: &Peer,
        numbers: &[u32],
    ) -> Result<Vec<[u8; RemoteMr::ENCODED_LEN]>, u32> {
        let reads_only = peer.key().and_then(Ticket::of).is_some_and(|ticket| !ticket.may_write);
        let of = |number: &u32| {
            let chunk = self.chunks.get(number)?;
            if reads_only { chunk.read_only.as_ref() } else { Some(&chunk.export) }
        };
        let located = |number: &u32| {
            let export = of(number).ok_or(*number)?;
            Ok::<_, u32>(peer.remote_mr(export).to_le_bytes())
        };
        numbers.iter().map(located).collect()
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
