//! A cache of registrations for memory that the cache co-owns.
//!
//! A registration costs a system call and, on a hardware card, the pinning of every page.
//! [`Memory`] that is used again keeps its registration here. Registrations of callers' slices are
//! not cached. A cache cannot detect that the pages of an address were replaced (`free`, `munmap`,
//! `mremap`, `madvise`, copy-on-write after `fork`). The card would then access stale pinned pages.
//! The `Arc<Memory>` of an entry excludes this, because the address range stays mapped while the
//! entry exists. An entry on loan ([`RegistrationCache::lend`]) exists only during a call whose
//! caller vouches for the memory.
//!
//! # Concurrency
//! Any thread may use the cache. A lookup holds `entries` shared, a change exclusively.
//! Registering and deregistering happen without the lock.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::mapping::Memory;
use crate::verbs::{Access, MrHandle, ProtectionDomain, VerbsError};

/// Limits of a [`RegistrationCache`]. One more region may be registered briefly while it replaces
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegistrationLimits {
    /// Maximum number of bytes of all entries.
    pub(crate) bytes: u64,
    /// Maximum number of entries.
    pub(crate) entries: usize,
}

impl Default for RegistrationLimits {
    fn default() -> Self {
        RegistrationLimits { bytes: 1 << 30, entries: 256 }
    }
}

/// Registrations of whole [`Memory`] objects in one protection domain, kept after use. Any thread
/// may use the cache.
///
/// An entry keeps its memory mapped. The cache removes the least recently used entry when it
/// needs space, or when the memory is [forgotten](Self::forget). It never removes an entry whose
/// handle is held elsewhere.
pub(crate) struct RegistrationCache {
    pd: Arc<dyn ProtectionDomain>,
    limits: RegistrationLimits,
    /// Number of uses, the time of `last_used`.
    clock: AtomicU64,
    entries: RwLock<Entries>,
    /// Number of entries. Lookups skip an empty cache without the lock; most sessions have no
    /// entries.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Entry {
    addr: u64,
    bytes: u64,
    /// Keeps the memory mapped. `None` for memory on loan, which its caller keeps.
    _memory: Option<Arc<Memory>>,
    access: Access,
    handle: MrHandle,
    last_used: AtomicU64,
}

impl Entry {
    /// Returns true while the handle is held outside the cache. Reliable under the write lock:
    /// otherwise a new handle can only be cloned from a handle that is already held outside.
    fn in_use(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }
}

#[derive(Debug, Default)]
struct Entries {
    /// Entries in ascending order of address. All memory is mapped, so different memories do not
    /// overlap. A memory has one entry for each set of rights.
    sorted: Vec<Entry>,
    bytes: u64,
}

/// Removed entries. They are deregistered after the lock is released, because that takes time.
type Evicted = SmallVec<[Entry; 4]>;

impl RegistrationCache {
    /// Creates an empty cache that registers in `pd`.
    pub(crate) fn new(pd: Arc<dyn ProtectionDomain>, limits: RegistrationLimits) -> RegistrationCache {
        let (clock, count) = (AtomicU64::new(0), AtomicUsize::new(0));
        RegistrationCache { pd, limits, clock, entries: RwLock::default(), count }
    }

    /// Returns a registration of the whole of `memory` with exactly these rights, and whether it
    /// was cached. If the cache has no space, because the memory is too large or all entries are in
    /// use, the registration ends with its last handle.
    ///
    /// # Errors
    /// The errors of [`ProtectionDomain::register`]; a retry is safe.
    pub(crate) fn register(
        &self,
        memory: &Arc<Memory>,
        access: Access,
    ) -> Result<(MrHandle, bool), VerbsError> {
        if let Some(handle) = self.find_in(memory.addr(), memory.len() as u64, |entry| entry.access == access)
        {
            return Ok((handle, true));
        }
        // Registers without the lock, so that lookups of other threads proceed.
        let handle = self.pd.register(memory, 0, memory.len() as u64, access)?;
        let mut evicted = Evicted::new();
        let kept = self.insert(memory, access, handle, &mut evicted);
        drop(evicted);
        Ok((kept, false))
    }

    /// Returns a registration that covers `len` bytes at `addr` with at least the rights `needs`.
    /// Allocates nothing.
    pub(crate) fn find(&self, addr: u64, len: u64, needs: Access) -> Option<MrHandle> {
        self.find_in(addr, len, |entry| entry.access.contains(needs))
    }

    /// Removes the registrations of `memory` that are not in use, so that it can be unmapped.
    /// Returns true if none remains.
    pub(crate) fn forget(&self, memory: &Memory) -> bool {
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

    /// Returns the current number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.read().sorted.len()
    }

    /// Returns the bytes of all entries. Memory that is registered with several sets of rights
    /// counts once for each.
    pub(crate) fn bytes(&self) -> u64 {
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
        let behind = entries.sorted.partition_point(|entry| entry.addr <= addr);
        // Only the last memory that begins at or before `addr` can cover it.
        let base = entries.sorted[..behind].last()?.addr;
        let mut same = entries.sorted[..behind].iter().rev().take_while(|entry| entry.addr == base);
        let entry = same.find(|entry| {
            let covered = (addr - base).checked_add(len).is_some_and(|end| end <= entry.bytes);
            covered && suits(entry)
        })?;
        entry.last_used.store(self.tick(), Ordering::Relaxed);
        Some(Arc::clone(&entry.handle))
    }

    /// Caches a new registration if space is available or can be freed. Returns the handle to use,
    /// which is another thread's handle if that thread registered first.
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
            addr: memory.addr(),
            bytes,
            _memory: Some(Arc::clone(memory)),
            access,
            handle: Arc::clone(&handle),
            last_used: AtomicU64::new(self.tick()),
        };
        entries.sorted.insert(at, entry);
        self.count.store(entries.sorted.len(), Ordering::Release);
        handle
    }

    /// Lets requests find a registration of memory that the cache does not own, until the return
    /// value is dropped. The caller holds another handle, so that the entry is never evicted.
    pub(crate) fn lend<'a>(&'a self, handle: &'a MrHandle) -> LentEntry<'a> {
        let (addr, bytes) = (handle.addr(), handle.length());
        let mut entries = self.entries.write();
        let (_, at) = entries.range_of(addr);
        entries.bytes += bytes;
        let entry = Entry {
            addr,
            bytes,
            _memory: None,
            access: handle.access(),
            handle: Arc::clone(handle),
            last_used: AtomicU64::new(self.tick()),
        };
        entries.sorted.insert(at, entry);
        self.count.store(entries.sorted.len(), Ordering::Release);
        LentEntry { cache: self, handle }
    }
}

/// An entry of memory that its caller keeps. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct LentEntry<'a> {
    cache: &'a RegistrationCache,
    handle: &'a MrHandle,
}

impl Drop for LentEntry<'_> {
    fn drop(&mut self) {
        let mut entries = self.cache.entries.write();
        let (start, end) = entries.range_of(self.handle.addr());
        // Another thread may have lent the same registration: either entry serves both.
        if let Some(at) = (start..end).find(|at| Arc::ptr_eq(&entries.sorted[*at].handle, self.handle)) {
            entries.remove(at);
        }
        self.cache.count.store(entries.sorted.len(), Ordering::Release);
    }
}

impl Entries {
    /// Returns the index range of the entries of the memory at `addr`.
    fn range_of(&self, addr: u64) -> (usize, usize) {
        let start = self.sorted.partition_point(|entry| entry.addr < addr);
        let end = self.sorted.partition_point(|entry| entry.addr <= addr);
        (start, end)
    }

    fn remove(&mut self, at: usize) -> Entry {
        let entry = self.sorted.remove(at);
        self.bytes -= entry.bytes;
        entry
    }

    /// Evicts entries until another entry of `bytes` fits. Evicts nothing and returns false if it
    /// can never fit.
    fn make_room(&mut self, bytes: u64, limits: &RegistrationLimits, evicted: &mut Evicted) -> bool {
        let fits = |count: usize, held: u64| {
            count < limits.entries && held.checked_add(bytes).is_some_and(|total| total <= limits.bytes)
        };
        let busy = self.sorted.iter().filter(|entry| entry.in_use());
        let (busy_count, busy_bytes) = busy.fold((0, 0), |(n, sum), entry| (n + 1, sum + entry.bytes));
        if !fits(busy_count, busy_bytes) {
            return false;
        }
        while !fits(self.sorted.len(), self.bytes) {
            // The number of entries is small, so a scan is cheaper than a list that every use has
            // to reorder.
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
