//! Regions of a protection domain, and the checks that guard them.
//!
//! A key is an index and a generation, so that a key of a region that is gone is never taken for that of its
//! successor (until the generation wraps after 255 uses of a slot). Regions with remote rights and purely local
//! ones have separate indices: only the former take room in the table that peers see.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{
    memory::Memory,
    verbs::{Access, Sge},
};

/// Marks keys of regions without remote rights.
const LOCAL_KEY: u32 = 1 << 31;
/// Most regions with remote rights at a time.
pub(crate) const MAX_REMOTE_REGIONS: usize = 4096;
/// Most regions without.
const MAX_LOCAL_REGIONS: usize = 1 << 22;

/// A registered range.
#[derive(Debug)]
pub(crate) struct Region {
    pub addr: u64,
    pub length: u64,
    pub access: Access,
    pub key: u32,
    /// Keeps the bytes mapped. `None` for borrowed memory, whose owner promised to.
    pub _memory: Option<Arc<Memory>>,
}

impl Region {
    /// Pointer to `len` bytes at `addr`, if they lie inside.
    pub(crate) fn resolve(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let offset = addr.checked_sub(self.addr)?;
        (offset.checked_add(len)? <= self.length).then_some(addr as *mut u8)
    }

    pub(crate) fn remote_index(&self) -> Option<usize> {
        (self.key & LOCAL_KEY == 0).then_some((self.key >> 8) as usize)
    }
}

/// A piece of registered memory that was checked, with what keeps it mapped.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub ptr: *mut u8,
    pub len: usize,
    /// Never read: it keeps the bytes mapped.
    _region: Arc<Region>,
}

// SAFETY: a Piece is an address inside memory that `_region` keeps mapped; who may touch the bytes when is the
// queue pair's business and does not depend on the thread.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Piece {
    pub(crate) fn new(region: &Arc<Region>, addr: u64, len: u64) -> Option<Piece> {
        let ptr = region.resolve(addr, len)?;
        Some(Piece { ptr, len: usize::try_from(len).ok()?, _region: Arc::clone(region) })
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    region: Option<Arc<Region>>,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

impl Slots {
    fn get(&self, key: u32) -> Option<&Arc<Region>> {
        let index = ((key & !LOCAL_KEY) >> 8) as usize;
        self.slots.get(index)?.region.as_ref().filter(|region| region.key == key)
    }
}

/// The regions of a protection domain.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    remote: RwLock<Slots>,
    local: RwLock<Slots>,
}

impl Regions {
    fn of(&self, key: u32) -> &RwLock<Slots> {
        if key & LOCAL_KEY == 0 { &self.remote } else { &self.local }
    }

    /// Most regions with such rights at a time.
    pub(crate) fn limit(access: Access) -> usize {
        if access.intersects(Access::REMOTE_ANY) { MAX_REMOTE_REGIONS } else { MAX_LOCAL_REGIONS }
    }

    /// Adds a region. `None` when there is no room.
    pub(crate) fn insert(
        &self,
        addr: u64,
        length: u64,
        access: Access,
        memory: Option<Arc<Memory>>,
    ) -> Option<Arc<Region>> {
        let remote = access.intersects(Access::REMOTE_ANY);
        let (table, mark) = if remote { (&self.remote, 0) } else { (&self.local, LOCAL_KEY) };
        let mut slots = table.write();
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.slots.len() < Self::limit(access) => {
                slots.slots.push(Slot::default());
                slots.slots.len() - 1
            }
            None => return None,
        };
        let slot = &mut slots.slots[index];
        // Generation 0 is never used, so that key 0 names nothing.
        slot.generation = if slot.generation == u8::MAX { 1 } else { slot.generation + 1 };
        let key = mark | (index as u32) << 8 | u32::from(slot.generation);
        let region = Arc::new(Region { addr, length, access, key, _memory: memory });
        slot.region = Some(Arc::clone(&region));
        Some(region)
    }

    /// Removes a region. Requests that hold a [`Piece`] of it finish.
    pub(crate) fn remove(&self, key: u32) {
        let mut slots = self.of(key).write();
        let index = ((key & !LOCAL_KEY) >> 8) as usize;
        if let Some(slot) = slots.slots.get_mut(index)
            && slot.region.as_ref().is_some_and(|region| region.key == key)
        {
            slot.region = None;
            slots.free.push(index);
        }
    }

    /// Checks a peer's access.
    pub(crate) fn remote(&self, key: u32, addr: u64, len: u64, needs: Access) -> Option<Piece> {
        let slots = self.remote.read();
        let region = slots.get(key)?;
        region.access.contains(needs).then(|| Piece::new(region, addr, len))?
    }

    /// Checks a scatter/gather element of this side.
    pub(crate) fn local(&self, sge: &Sge, needs: Access) -> Option<Piece> {
        let slots = self.of(sge.lkey).read();
        let region = slots.get(sge.lkey)?;
        region.access.contains(needs).then(|| Piece::new(region, sge.addr, u64::from(sge.length)))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_removed_regions_name_nothing_even_when_the_slot_is_used_again() {
        let regions = Regions::default();
        let first = regions.insert(0x1000, 16, Access::REMOTE_READ, None).unwrap().key;
        regions.remove(first);
        let second = regions.insert(0x1000, 16, Access::REMOTE_READ, None).unwrap().key;
        assert_ne!(first, second);
        assert!(regions.remote(first, 0x1000, 16, Access::REMOTE_READ).is_none());
        assert!(regions.remote(second, 0x1000, 16, Access::REMOTE_READ).is_some());
        assert!(regions.remote(0, 0x1000, 16, Access::empty()).is_none());
    }

    #[test]
    fn ranges_and_rights_are_checked_without_overflow() {
        let regions = Regions::default();
        let key = regions.insert(0x1000, 16, Access::REMOTE_READ, None).unwrap().key;
        let ok = |addr, len, needs| regions.remote(key, addr, len, needs).is_some();
        assert!(ok(0x1000, 16, Access::REMOTE_READ));
        assert!(ok(0x1010, 0, Access::REMOTE_READ));
        assert!(!ok(0x1000, 17, Access::REMOTE_READ));
        assert!(!ok(0x0fff, 1, Access::REMOTE_READ));
        assert!(!ok(0x1001, u64::MAX, Access::REMOTE_READ));
        assert!(!ok(u64::MAX, 2, Access::REMOTE_READ));
        assert!(!ok(0x1000, 1, Access::REMOTE_WRITE));
    }

    #[test]
    fn a_local_key_is_no_remote_key() {
        let regions = Regions::default();
        let key = regions.insert(0x1000, 16, Access::LOCAL_WRITE, None).unwrap().key;
        assert!(regions.remote(key, 0x1000, 1, Access::empty()).is_none());
        let sge = Sge { addr: 0x1000, length: 16, lkey: key };
        assert!(regions.local(&sge, Access::LOCAL_WRITE).is_some());
    }
}
