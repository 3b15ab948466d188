//! One-sided requests on a peer's mapped memory, executed by the poster.
//!
//! The poster makes the checks that a responder would make, against the peer's table of regions, and then copies
//! or runs the atomic itself. What the table says is bounded by the mapping, so that a wrong table never makes
//! this process touch anything but the memory that the peer handed over.
//!
//! Requests of one poster take effect in their order also for whoever looks from another processor: a WRITE comes with a fence before
//! it, a READ with one behind it, and atomics are sequentially consistent. Where processors keep that order by themselves the
//! fences cost nothing.

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    sync::{
        Arc, Weak,
        atomic::{Ordering, fence},
    },
};

use parking_lot::Mutex;

use super::{regions::Piece, shared_table};
use crate::{
    memory::{self, Memory, MemoryError},
    sync::{ReaderGuard, ReaderLock},
    verbs::{Access, RemoteAddr, WcStatus},
};

/// Memory objects that a peer can hand over.
const MAX_MEMORIES: usize = 4096;

/// The mappings of peers' memory of a protection domain. Its queue pairs share them: each mapping has page tables of
/// its own, to be filled fault by fault.
#[derive(Debug, Default)]
pub(crate) struct PeerMappings(Mutex<Vec<(MemoryIdentity, Weak<Memory>)>>);

/// Tells memory objects of this host apart: the identity of the file behind them, and how it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryIdentity {
    device: u64,
    inode: u64,
    len: usize,
    writable: bool,
}

impl PeerMappings {
    fn map(&self, fd: OwnedFd, len: usize, writable: bool) -> Result<Arc<Memory>, MemoryError> {
        let file = File::from(fd);
        let meta = file.metadata().map_err(|source| MemoryError::Os { what: "fstat", source })?;
        let identity = MemoryIdentity { device: meta.dev(), inode: meta.ino(), len, writable };
        let mut known = self.0.lock();
        known.retain(|(_, memory)| memory.strong_count() > 0);
        if let Some(memory) = known.iter().find(|(id, _)| *id == identity).and_then(|(_, m)| m.upgrade()) {
            return Ok(memory);
        }
        let memory = Arc::new(Memory::from_peer(file.into(), len, writable)?);
        known.push((identity, Arc::downgrade(&memory)));
        Ok(memory)
    }
}

/// The peer's memory, as far as it is mapped here.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    table: Memory,
    /// By the peer's number for it, in rising order. Held for reading over every execution, so that whoever gets it for
    /// writing knows that none is under way.
    mapped: ReaderLock<Vec<(u64, Arc<Memory>)>>,
    mappings: Arc<PeerMappings>,
    /// What the peer wants to be held until the last execution is over.
    tether: Mutex<Option<OwnedFd>>,
}

/// Requests are being executed on the peer's memory. None of them outlives this.
#[derive(Debug)]
pub(crate) struct Executing<'a> {
    table: &'a Memory,
    mapped: ReaderGuard<'a, Vec<(u64, Arc<Memory>)>>,
}

/// Why a place in the peer's memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The key, the range or the rights are wrong.
    Access,
    /// The region is known but its memory has not arrived yet.
    NotMapped,
}

impl PeerMemory {
    pub(crate) fn new(
        table: OwnedFd,
        len: usize,
        mappings: &Arc<PeerMappings>,
    ) -> Result<PeerMemory, MemoryError> {
        if len < shared_table::TABLE_LEN {
            return Err(MemoryError::BadHandle("region table is too short"));
        }
        // However long it is said to be, no more of it is looked at.
        let table = Memory::from_peer(table, shared_table::TABLE_LEN, false)?;
        let (mapped, tether) = (ReaderLock::default(), Mutex::default());
        Ok(PeerMemory { table, mapped, mappings: Arc::clone(mappings), tether })
    }

    /// True if no further memory is taken from this peer.
    pub(crate) fn is_full(&self) -> bool {
        self.mapped.read().len() >= MAX_MEMORIES
    }

    /// Maps memory that arrived; writable if the descriptor is.
    pub(crate) fn add(&self, id: u64, fd: OwnedFd, len: usize, writable: bool) -> Result<(), MemoryError> {
        let memory = self.mappings.map(fd, len, writable)?;
        let mut mapped = self.mapped.write();
        match mapped.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => mapped[at].1 = memory,
            Err(at) => mapped.insert(at, (id, memory)),
        }
        Ok(())
    }

    /// Begins an execution. Blocks while handles arrive or the queue pair ends.
    pub(crate) fn execute(&self) -> Executing<'_> {
        Executing { table: &self.table, mapped: self.mapped.read() }
    }

    /// As [`execute`](Self::execute), but `None` where that would block.
    #[inline]
    pub(crate) fn try_execute(&self) -> Option<Executing<'_>> {
        Some(Executing { table: &self.table, mapped: self.mapped.try_read()? })
    }

    /// Holds a descriptor until [`let_go`](Self::let_go). False if there is one already.
    pub(crate) fn tie(&self, tether: OwnedFd) -> bool {
        let mut held = self.tether.lock();
        let first = held.is_none();
        held.get_or_insert(tether);
        first
    }

    /// Returns when every execution that was under way is over.
    pub(crate) fn await_executions(&self) {
        drop(self.mapped.write());
    }

    /// No execution is under way, and none will be: whoever asks who has the tether need not wait for this one.
    pub(crate) fn let_go(&self) {
        *self.tether.lock() = None;
    }
}

impl Executing<'_> {
    /// Finds `len` bytes at `remote`: the mapping and the offset in it.
    #[inline]
    pub(crate) fn locate(
        &self,
        remote: RemoteAddr,
        len: u64,
        needs: Access,
    ) -> Result<(&Arc<Memory>, usize), Refused> {
        let entry = shared_table::lookup(self.table, remote.rkey).ok_or(Refused::Access)?;
        if !entry.access.contains(needs) {
            return Err(Refused::Access);
        }
        let offset = remote.addr.checked_sub(entry.addr).ok_or(Refused::Access)?;
        if offset.checked_add(len).is_none_or(|end| end > entry.length) {
            return Err(Refused::Access);
        }
        let at = self.mapped.binary_search_by_key(&entry.memory_id, |(id, _)| *id);
        let memory = &self.mapped[at.map_err(|_| Refused::NotMapped)?].1;
        let start = entry.memory_offset.checked_add(offset).ok_or(Refused::Access)?;
        if start.checked_add(len).is_none_or(|end| end > memory.len() as u64) {
            return Err(Refused::Access);
        }
        if needs.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !memory.is_writable() {
            return Err(Refused::NotMapped);
        }
        Ok((memory, start as usize))
    }
}

/// Gathers `from` into the peer's memory.
pub(crate) fn write(memory: &Memory, mut offset: usize, from: &[Piece]) {
    fence(Ordering::Release);
    let len = from.iter().map(|piece| piece.len).sum();
    // SAFETY: each piece was checked against its region and keeps it mapped.
    if unsafe {
        memory.prepare_write(offset, len, from.iter().map(|piece| (piece.ptr.cast_const(), piece.len)))
    } {
        return;
    }
    for piece in from {
        // SAFETY: the piece was checked against its region and keeps it mapped; the caller located the whole
        // length in `memory`. A private mapping and a peer's never overlap; the same shared memory mapped twice
        // may, at other addresses: then bytes mix, as two requests racing on the same memory would.
        unsafe { memory::copy(piece.ptr, memory.ptr(offset), piece.len) };
        offset += piece.len;
    }
}

/// Copies bytes of this process into the peer's memory.
pub(crate) fn write_bytes(memory: &Memory, offset: usize, bytes: &[u8]) {
    fence(Ordering::Release);
    // SAFETY: a slice.
    if unsafe { memory.prepare_write(offset, bytes.len(), [(bytes.as_ptr(), bytes.len())].into_iter()) } {
        return;
    }
    if let (Ok(word), true) = (<[u8; 8]>::try_from(bytes), offset.is_multiple_of(8)) {
        // A word is stored as a whole, over every provider.
        memory.atomic_u64(offset).store(u64::from_ne_bytes(word), Ordering::Release);
        return;
    }
    memory.write(offset, bytes);
}

/// Copies the peer's memory to bytes of this process.
pub(crate) fn read_bytes(memory: &Memory, offset: usize, out: &mut [u8]) {
    memory.read(offset, out);
    fence(Ordering::Acquire);
}

/// Scatters the peer's memory to `to`.
pub(crate) fn read(memory: &Memory, mut offset: usize, to: &[Piece]) {
    for piece in to {
        // SAFETY: as in `write`, with the directions exchanged.
        unsafe { memory::copy(memory.ptr(offset), piece.ptr, piece.len) };
        offset += piece.len;
    }
    fence(Ordering::Acquire);
}

/// An atomic on the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Runs an atomic on an aligned word and gives its old value.
pub(crate) fn atomic(memory: &Memory, offset: usize, op: Atomic) -> Result<u64, WcStatus> {
    if !offset.is_multiple_of(8) {
        return Err(WcStatus::RemInvReqErr);
    }
    Ok(apply(memory.atomic_u64(offset), op))
}

/// Runs an atomic.
pub(crate) fn apply(word: &std::sync::atomic::AtomicU64, op: Atomic) -> u64 {
    match op {
        Atomic::CompareSwap { compare, swap } => {
            match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }
        Atomic::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
    }
}

/// Stores an atomic's old value into the requester's 8-byte element.
pub(crate) fn store_old_value(to: &Piece, old: u64) {
    debug_assert_eq!(to.len, 8);
    // SAFETY: the piece is 8 checked bytes of registered memory, not necessarily aligned.
    unsafe { std::ptr::write_unaligned(to.ptr.cast::<u64>(), old) };
}

#[cfg(all(not(loom), test))]
mod tests {
    use super::*;

    #[test]
    fn no_more_of_a_table_is_mapped_than_is_looked_at() {
        let long = Memory::shared("table", 1 << 30).unwrap();
        let table = |len| PeerMemory::new(long.peer_fd(false).unwrap(), len, &Arc::default());
        assert_eq!(table(1 << 30).unwrap().table.len(), shared_table::TABLE_LEN);
        assert!(table(shared_table::TABLE_LEN - 1).is_err());
        let short = Memory::shared("table", shared_table::TABLE_LEN - 1).unwrap();
        assert!(PeerMemory::new(short.peer_fd(false).unwrap(), 1 << 30, &Arc::default()).is_err());
    }
}
