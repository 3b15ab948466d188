//! The table of remotely accessible regions of a protection domain, which peers of the host map
//! read-only.
//!
//! With the table a poster performs a responder's checks without a message. The owner changes an
//! entry under its sequence number. A reader retries while the number is odd or changes. All
//! accesses are whole words. A reader checks entries against the memory that it has mapped, so a
//! malicious owner can only make requests fail or access its own memory.
//!
//! # Concurrency
//! The owner serializes changes. Readers take no lock.

use std::sync::{
    Arc,
    atomic::{Ordering, fence},
};

use super::regions::{MAX_REMOTE_REGIONS, Region, remote_index};
use crate::{
    mapping::{Memory, MemoryError},
    verbs::Access,
};

const ENTRY_LEN: usize = 64;
const SEQUENCE: usize = 0;
/// Key in the low half, rights in the high half; 0 marks a free entry.
const KEY_ACCESS: usize = 8;
const ADDR: usize = 16;
const LENGTH: usize = 24;
const MEMORY_ID: usize = 32;
const MEMORY_OFFSET: usize = 40;

/// Size of a table in bytes.
pub(crate) const TABLE_LEN: usize = ENTRY_LEN * MAX_REMOTE_REGIONS;

/// An entry as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub key: u32,
    pub access: Access,
    pub addr: u64,
    pub length: u64,
    pub memory_id: u64,
    pub memory_offset: u64,
}

/// The owner's side. The caller serializes changes.
#[derive(Debug)]
pub(crate) struct OwnTable {
    memory: Arc<Memory>,
}

impl OwnTable {
    pub(crate) fn new() -> Result<OwnTable, MemoryError> {
        Ok(OwnTable { memory: Arc::new(Memory::shared("rdmabox-regions", TABLE_LEN)?) })
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Makes a region visible to the peers.
    pub(crate) fn publish(&self, region: &Region, memory_id: u64, memory_offset: u64) {
        let Some(index) = region.remote_index() else { return };
        self.change(
            index,
            &[
                (KEY_ACCESS, u64::from(region.key) | u64::from(region.access.bits()) << 32),
                (ADDR, region.addr),
                (LENGTH, region.length),
                (MEMORY_ID, memory_id),
                (MEMORY_OFFSET, memory_offset),
            ],
        );
    }

    /// Removes a region.
    pub(crate) fn revoke(&self, region: &Region) {
        if let Some(index) = region.remote_index() {
            self.change(index, &[(KEY_ACCESS, 0)]);
        }
    }

    fn change(&self, index: usize, words: &[(usize, u64)]) {
        let base = index * ENTRY_LEN;
        let sequence = self.memory.atomic_u64(base + SEQUENCE);
        let before = sequence.load(Ordering::Relaxed);
        sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (offset, word) in words {
            self.memory.atomic_u64(base + offset).store(*word, Ordering::Relaxed);
        }
        sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

/// Looks up `rkey` in a peer's table.
#[inline]
pub(crate) fn lookup(table: &Memory, rkey: u32) -> Option<Entry> {
    let index = remote_index(rkey);
    if index >= MAX_REMOTE_REGIONS {
        return None;
    }
    let base = index * ENTRY_LEN;
    // The owner changes an entry in well under a microsecond. An entry that stays odd belongs to a
    // dead owner.
    for _ in 0..10_000 {
        let [before, key_access, addr, length, memory_id, memory_offset] = table.load_words(base);
        let entry = Entry {
            key: key_access as u32,
            access: Access::from_bits_truncate((key_access >> 32) as u32),
            addr,
            length,
            memory_id,
            memory_offset,
        };
        fence(Ordering::Acquire);
        if before.is_multiple_of(2) && table.load_u64(base + SEQUENCE) == before {
            return (entry.key == rkey && key_access != 0).then_some(entry);
        }
        std::hint::spin_loop();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_entries_are_found_until_revoked() {
        let table = OwnTable::new().unwrap();
        let region =
            Region { addr: 0x5000, length: 64, access: Access::REMOTE_READ, key: 3 << 19 | 7, memory: None };
        assert_eq!(lookup(table.memory(), region.key), None);
        table.publish(&region, 4, 4096);
        let expected = Entry {
            key: region.key,
            access: Access::REMOTE_READ,
            addr: 0x5000,
            length: 64,
            memory_id: 4,
            memory_offset: 4096,
        };
        assert_eq!(lookup(table.memory(), region.key), Some(expected));
        assert_eq!(lookup(table.memory(), 3 << 19 | 8), None);
        assert_eq!(lookup(table.memory(), u32::MAX), None);
        table.revoke(&region);
        assert_eq!(lookup(table.memory(), region.key), None);
    }
}
