//! One-sided requests on a peer's mapped memory, executed by the thread that posts them.
//!
//! The poster performs the checks of a responder against the peer's table of regions. Then it
//! copies or runs the atomic itself. All values of the table are checked against the size of the
//! mapping, so a corrupt table cannot make this process access other memory.
//!
//! # Concurrency
//! Requests of one poster become visible to other processors in order. A WRITE follows a release
//! fence, a READ precedes an acquire fence, and atomics are sequentially consistent. Executions
//! hold `mapped` shared; new memory and the end of the queue pair hold it exclusively.

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
    mapping::{self, Memory, MemoryError},
    sync::{ReaderGuard, ReaderLock},
    verbs::{Access, AtomicOp, RemoteAddr, WcStatus},
};

/// Maximum number of memory objects that a peer may pass.
const MAX_MEMORIES: usize = 4096;

/// Mappings of peers' memory in a protection domain. Its queue pairs share them, because each
/// mapping has its own page tables and page faults.
#[derive(Debug, Default)]
pub(crate) struct PeerMappings(Mutex<Vec<(MemoryIdentity, Weak<Memory>)>>);

/// Identity of a memory object of this host: its file and how it is mapped.
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

/// The mapped part of the peer's memory.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    table: Memory,
    /// Mappings in ascending order of the peer's memory number. Held shared during every execution,
    /// so a writer knows that no execution is in progress.
    mapped: ReaderLock<Vec<(u64, Arc<Memory>)>>,
    mappings: Arc<PeerMappings>,
    /// Descriptor that the peer wants held until the last execution has finished.
    tether: Mutex<Option<OwnedFd>>,
}

/// Access for executing requests on the peer's memory. No execution outlives it.
#[derive(Debug)]
pub(crate) struct Executing<'a> {
    table: &'a Memory,
    mapped: ReaderGuard<'a, Vec<(u64, Arc<Memory>)>>,
}

/// Reason why an address in the peer's memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The key, the range or the rights are wrong.
    Access,
    /// The region exists, but its memory has not arrived yet.
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
        // Maps only the part that is read, independent of the announced length.
        let table = Memory::from_peer(table, shared_table::TABLE_LEN, false)?;
        let (mapped, tether) = (ReaderLock::default(), Mutex::default());
        Ok(PeerMemory { table, mapped, mappings: Arc::clone(mappings), tether })
    }

    /// Returns true if no further memory is accepted from this peer.
    pub(crate) fn is_full(&self) -> bool {
        self.mapped.read().len() >= MAX_MEMORIES
    }

    /// Maps memory that arrived from the peer, for writing if `writable`.
    pub(crate) fn add(&self, id: u64, fd: OwnedFd, len: usize, writable: bool) -> Result<(), MemoryError> {
        let memory = self.mappings.map(fd, len, writable)?;
        let mut mapped = self.mapped.write();
        match mapped.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => mapped[at].1 = memory,
            Err(at) => mapped.insert(at, (id, memory)),
        }
        Ok(())
    }

    /// Starts an execution. Blocks while memory is added or the queue pair ends.
    pub(crate) fn execute(&self) -> Executing<'_> {
        Executing { table: &self.table, mapped: self.mapped.read() }
    }

    /// Works like [`execute`](Self::execute), but returns `None` instead of blocking.
    #[inline]
    pub(crate) fn try_execute(&self) -> Option<Executing<'_>> {
        Some(Executing { table: &self.table, mapped: self.mapped.try_read()? })
    }

    /// Holds a descriptor until [`drop_tether`](Self::drop_tether). Returns false if another is
    /// held already.
    pub(crate) fn hold_tether(&self, tether: OwnedFd) -> bool {
        let mut held = self.tether.lock();
        let first = held.is_none();
        held.get_or_insert(tether);
        first
    }

    /// Blocks until every execution in progress has finished.
    pub(crate) fn await_executions(&self) {
        drop(self.mapped.write());
    }

    /// Removes the memory `id`. Blocks until every execution in progress has finished.
    pub(crate) fn forget(&self, id: u64) {
        let mut mapped = self.mapped.write();
        let removed = mapped.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| mapped.remove(at));
        drop(mapped);
        // The last mapping is removed without the lock.
        drop(removed);
    }

    /// Drops the tether. The caller guarantees that no execution is in progress or will start. So a
    /// server that waits for the tether's holders need not wait for this client.
    pub(crate) fn drop_tether(&self) {
        *self.tether.lock() = None;
    }
}

impl Executing<'_> {
    /// Returns the mapping and the offset of `len` bytes at `remote`.
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
    if let [piece] = from
        && is_word(offset, piece.len)
    {
        // SAFETY: the piece is 8 checked bytes of registered memory, not necessarily aligned.
        let word: [u8; 8] = unsafe { std::ptr::read_unaligned(piece.ptr.cast()) };
        return write_bytes(memory, offset, &word);
    }
    // SAFETY: each piece was checked against its region and keeps it mapped.
    if unsafe {
        memory.prepare_write(offset, len, from.iter().map(|piece| (piece.ptr.cast_const(), piece.len)))
    } {
        return;
    }
    for piece in from {
        // SAFETY: the piece was checked against its region and keeps it mapped; the caller located
        // the whole length in `memory`. A private mapping never overlaps a peer's. Shared memory
        // that is mapped twice may overlap at other addresses; then bytes mix as with racing
        // requests.
        unsafe { mapping::copy(piece.ptr, memory.ptr(offset), piece.len) };
        offset += piece.len;
    }
}

/// Copies bytes of this process into the peer's memory.
pub(crate) fn write_bytes(memory: &Memory, offset: usize, bytes: &[u8]) {
    fence(Ordering::Release);
    // SAFETY: the piece is a slice.
    if unsafe { memory.prepare_write(offset, bytes.len(), [(bytes.as_ptr(), bytes.len())].into_iter()) } {
        return;
    }
    if let (Ok(word), true) = (<[u8; 8]>::try_from(bytes), offset.is_multiple_of(8)) {
        // An aligned word is stored atomically, as with every provider.
        memory.atomic_u64(offset).store(u64::from_ne_bytes(word), Ordering::Release);
        return;
    }
    memory.write(offset, bytes);
}

/// Returns true for an aligned word, which every provider reads and stores as a whole.
fn is_word(offset: usize, len: usize) -> bool {
    len == 8 && offset.is_multiple_of(8)
}

/// Copies the peer's memory to bytes of this process.
pub(crate) fn read_bytes(memory: &Memory, offset: usize, out: &mut [u8]) {
    if is_word(offset, out.len()) {
        out.copy_from_slice(&memory.load_u64(offset).to_ne_bytes());
        return;
    }
    memory.read(offset, out);
    fence(Ordering::Acquire);
}

/// Scatters the peer's memory to `to`.
pub(crate) fn read(memory: &Memory, mut offset: usize, to: &[Piece]) {
    if let [piece] = to
        && is_word(offset, piece.len)
    {
        return store_word(piece, memory.load_u64(offset));
    }
    for piece in to {
        // SAFETY: as in `write`, with source and destination exchanged.
        unsafe { mapping::copy(memory.ptr(offset), piece.ptr, piece.len) };
        offset += piece.len;
    }
    fence(Ordering::Acquire);
}

/// An atomic operation on the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
    FetchOp(AtomicOp),
}

/// Runs an atomic on an aligned word and returns its old value.
pub(crate) fn atomic(memory: &Memory, offset: usize, op: Atomic) -> Result<u64, WcStatus> {
    if !offset.is_multiple_of(8) {
        return Err(WcStatus::RemInvReqErr);
    }
    Ok(apply(memory.atomic_u64(offset), op))
}

/// Runs an atomic and returns the old value.
pub(crate) fn apply(word: &std::sync::atomic::AtomicU64, op: Atomic) -> u64 {
    match op {
        Atomic::CompareSwap { compare, swap } => {
            match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }
        Atomic::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
        Atomic::FetchOp(AtomicOp::Swap(new)) => word.swap(new, Ordering::SeqCst),
        Atomic::FetchOp(AtomicOp::And(mask)) => word.fetch_and(mask, Ordering::SeqCst),
        Atomic::FetchOp(AtomicOp::Or(mask)) => word.fetch_or(mask, Ordering::SeqCst),
        Atomic::FetchOp(AtomicOp::Xor(mask)) => word.fetch_xor(mask, Ordering::SeqCst),
        Atomic::FetchOp(AtomicOp::Min(other)) => word.fetch_min(other, Ordering::SeqCst),
        Atomic::FetchOp(AtomicOp::Max(other)) => word.fetch_max(other, Ordering::SeqCst),
    }
}

/// Stores a word, such as an atomic's old value, into the requester's 8-byte element.
pub(crate) fn store_word(to: &Piece, word: u64) {
    debug_assert_eq!(to.len, 8);
    // SAFETY: the piece is 8 checked bytes of registered memory, not necessarily aligned.
    unsafe { std::ptr::write_unaligned(to.ptr.cast::<u64>(), word) };
}

#[cfg(all(not(loom), test))]
mod tests {
    use super::*;

    #[test]
    fn only_the_used_part_of_a_region_table_is_mapped() {
        let long = Memory::shared("table", 1 << 30).unwrap();
        let table = |len| PeerMemory::new(long.peer_fd(false).unwrap(), len, &Arc::default());
        assert_eq!(table(1 << 30).unwrap().table.len(), shared_table::TABLE_LEN);
        assert!(table(shared_table::TABLE_LEN - 1).is_err());
        let short = Memory::shared("table", shared_table::TABLE_LEN - 1).unwrap();
        assert!(PeerMemory::new(short.peer_fd(false).unwrap(), 1 << 30, &Arc::default()).is_err());
    }
}
