//! A cache of registrations, of memory that the cache shares the ownership of.
//!
//! Registering costs a system call and the pinning of every page on a real card. [`Memory`] that is used again keeps its
//! registration here.
//!
//! Registrations of callers' slices are not cached, although that would pay most. A slice is an address, and a cache
//! that is asked for an address cannot see that its pages were unmapped and others mapped there since (by `free`, `munmap`,
//! `mremap`, `madvise`, or a `fork` that copies on write): the card would go on using the old, pinned pages, read stale
//! bytes, and write where nobody looks. Libraries that do it hook the allocator and the system calls that change mappings,
//! or ask the kernel for notice, and have had bugs there for as long as they exist. An `Arc<Memory>` in the cache rules it
//! out instead: while the entry is there the mapping is, and so the address range belongs to nothing else.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::Memory;
use crate::verbs::{Access, MrHandle, ProtectionDomain, VerbsError};

/// How much a [`RegistrationCache`] keeps. For a moment one more may be registered, while it takes the place of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationLimits {
    /// Most bytes of all entries together.
    pub bytes: u64,
    /// Most entries.
    pub entries: usize,
}

impl Default for RegistrationLimits {
    fn default() -> Self {
        RegistrationLimits { bytes: 1 << 30, entries: 256 }
    }
}

/// Registrations of whole [`Memory`]s in one protection domain, kept after use. Any thread may use it.
///
/// An entry keeps its memory mapped. It goes when room is needed and it was used least recently, or when it is
/// [forgotten](Self::forget), but not while anybody else holds its handle.
pub struct RegistrationCache {
    pd: Arc<dyn ProtectionDomain>,
    limits: RegistrationLimits,
    /// Counts uses.
    clock: AtomicU64,
    entries: RwLock<Entries>,
    /// How many entries there are, for those who would look for one in vain: most sessions have none.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Entry {
    memory: Arc<Memory>,
    access: Access,
    handle: MrHandle,
    last_used: AtomicU64,
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// True while somebody besides the cache holds the handle. Reliable under the write lock: without it, another one
    /// comes into being only from one that is held outside already.
    fn in_use(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }
}

#[derive(Debug, Default)]
struct Entries {
    /// In ascending order of address. All of it is mapped, so that different memories do not overlap; one memory has an
    /// entry for each set of rights that it was asked for with.
    sorted: Vec<Entry>,
    bytes: u64,
}

/// Entries on their way out. Deregistering takes time, and is done without the lock.
type Evicted = SmallVec<[Entry; 4]>;

impl RegistrationCache {
    /// An empty cache that registers in `pd`.
    pub fn new(pd: Arc<dyn ProtectionDomain>, limits: RegistrationLimits) -> RegistrationCache {
        let (clock, count) = (AtomicU64::new(0), AtomicUsize::new(0));
        RegistrationCache { pd, limits, clock, entries: RwLock::default(), count }
    }

    /// A registration of the whole of `memory` with exactly these rights, and whether the cache had it. One that has no
    /// room, because it is too large or all others are in use, is made all the same, and ends with its last handle.
    ///
    /// # Errors
    /// Those of [`ProtectionDomain::register`]; a retry is safe.
    pub fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<(MrHandle, bool), VerbsError> {
        if let Some(handle) = self.find_in(memory.addr(), memory.len() as u64, |entry| entry.access == access)
        {
            return Ok((handle, true));
        }
        // Without the lock: others find what they look for meanwhile.
        let handle = self.pd.register(memory, 0, memory.len() as u64, access)?;
        let mut evicted = Evicted::new();
        let kept = self.insert(memory, access, handle, &mut evicted);
        drop(evicted);
        Ok((kept, false))
    }

    /// A registration that covers `len` bytes at `addr` and has at least the rights `needs`. Allocates nothing.
    pub fn find(&self, addr: u64, len: u64, needs: Access) -> Option<MrHandle> {
        self.find_in(addr, len, |entry| entry.access.contains(needs))
    }

    /// Gives up what is registered of `memory` and not in use, so that it can be unmapped. True if nothing is left.
    pub fn forget(&self, memory: &Memory) -> bool {
        let mut evicted = Evicted::new();
        let mut entries = self.entries.write();
        let (mut at, end) = entries.range_of(memory.addr());
        let mut left = end - at;
        while left > 0 {
            left -= 1;
            if entries.sorted[at].in_use() { at += 1 } else { evicted.push(entries.remove(at)) }
        }
        let (start, end) = entries.range_of(memory.addr());
        self.count.store(entries.sorted.len(), Ordering::Release);
        drop(entries);
        start == end
    }

    /// Entries at present.
    pub fn len(&self) -> usize {
        self.entries.read().sorted.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all entries at present; memory that is registered with different rights counts for each.
    pub fn bytes(&self) -> u64 {
        self.entries.read().bytes
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn find_in(&self, addr: u64, len: u64, suits: impl Fn(&Entry) -> bool) -> Option<MrHandle> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let entries = self.entries.read();
        let behind = entries.sorted.partition_point(|entry| entry.memory.addr() <= addr);
        // The memory that begins last at or before `addr` is the only one that can cover it.
        let base = entries.sorted[..behind].last()?.memory.addr();
        let mut same = entries.sorted[..behind].iter().rev().take_while(|entry| entry.memory.addr() == base);
        let entry = same.find(|entry| {
            let covered = (addr - base).checked_add(len).is_some_and(|end| end <= entry.bytes());
            covered && suits(entry)
        })?;
        entry.last_used.store(self.tick(), Ordering::Relaxed);
        Some(Arc::clone(&entry.handle))
    }

    /// Keeps a new registration if there is room for it or room can be made. Gives the handle to use: where another
    /// thread was faster, its.
    fn insert(
        &self,
        memory: &Arc<Memory>,
        access: Access,
        handle: MrHandle,
        evicted: &mut Evicted,
    ) -> MrHandle {
        let mut entries = self.entries.write();
        let (start, end) = entries.range_of(memory.addr());
        if let Some(other) = entries.sorted[start..end].iter().find(|entry| entry.access == access) {
            other.last_used.store(self.tick(), Ordering::Relaxed);
            return Arc::clone(&other.handle);
        }
        let bytes = memory.len() as u64;
        let has_room = entries.make_room(bytes, &self.limits, evicted);
        self.count.store(entries.sorted.len(), Ordering::Release);
        if !has_room {
            return handle;
        }
        let (_, at) = entries.range_of(memory.addr());
        entries.bytes += bytes;
        let entry = Entry {
            memory: Arc::clone(memory),
            access,
            handle: Arc::clone(&handle),
            last_used: AtomicU64::new(self.tick()),
        };
        entries.sorted.insert(at, entry);
        self.count.store(entries.sorted.len(), Ordering::Release);
        handle
    }
}

impl Entries {
    /// Where the entries of the memory at `addr` are.
    fn range_of(&self, addr: u64) -> (usize, usize) {
        let start = self.sorted.partition_point(|entry| entry.memory.addr() < addr);
        let end = self.sorted.partition_point(|entry| entry.memory.addr() <= addr);
        (start, end)
    }

    fn remove(&mut self, at: usize) -> Entry {
        let entry = self.sorted.remove(at);
        self.bytes -= entry.bytes();
        entry
    }

    /// Evicts until another entry of `bytes` fits. If it would not fit even then, nothing is evicted.
    fn make_room(&mut self, bytes: u64, limits: &RegistrationLimits, evicted: &mut Evicted) -> bool {
        let fits = |count: usize, held: u64| {
            count < limits.entries && held.checked_add(bytes).is_some_and(|total| total <= limits.bytes)
        };
        let busy = self.sorted.iter().filter(|entry| entry.in_use());
        let (busy_count, busy_bytes) = busy.fold((0, 0), |(n, sum), entry| (n + 1, sum + entry.bytes()));
        if !fits(busy_count, busy_bytes) {
            return false;
        }
        while !fits(self.sorted.len(), self.bytes) {
            // Few entries: a scan is quicker than a list that every use would have to keep in order.
            let idle = self.sorted.iter().enumerate().filter(|(_, entry)| !entry.in_use());
            let Some((oldest, _)) = idle.min_by_key(|(_, entry)| entry.last_used.load(Ordering::Relaxed))
            else {
                return false;
            };
            evicted.push(self.remove(oldest));
        }
        true
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("entries", &self.len())
            .field("bytes", &self.bytes())
            .field("limits", &self.limits)
            .finish()
    }
}

#[cfg(test)]
mod tests;
