//! The items of a partition: their memory, their index and their order of use.
//!
//! An item is *linked* while the index has it. Transfers of long values *hold* items, linked or
//! not. The invariant: the blocks of an item are free once it is neither linked nor held.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use super::{
    blocks::{BLOCK, BlockId, Blocks, Cursor, Head, NONE, blocks_of},
    index::Index,
    item::Item,
    limits::{Limits, SizeError},
    lru::Lru,
};
use crate::store::{
    error::StoreError,
    key::{Key, MAX_KEY},
};

/// Items without rules about their life.
pub(in crate::store) struct Items {
    blocks: Blocks,
    index: Index,
    lru: Lru,
    /// Number of linked items, and the bytes of their keys and values.
    linked: u64,
    linked_bytes: u64,
    /// Blocks of the items that transfers hold.
    held_blocks: usize,
}

impl Items {
    /// Takes the memory of a partition.
    pub(in crate::store) fn new(limits: &Limits) -> Result<Items, SizeError> {
        let count = limits.blocks()?;
        let refused = |_| SizeError::Refused(limits.memory);
        let (blocks, index) = (Blocks::new(count).map_err(refused)?, Index::new(count).map_err(refused)?);
        Ok(Items { blocks, index, lru: Lru::new(), linked: 0, linked_bytes: 0, held_blocks: 0 })
    }

    pub(in crate::store) fn find(&self, key: &Key<'_>) -> Option<BlockId> {
        self.index.find(&self.blocks, key)
    }

    pub(in crate::store) fn head(&self, item: BlockId) -> &Head {
        self.blocks.head(item)
    }

    pub(in crate::store) fn head_mut(&mut self, item: BlockId) -> &mut Head {
        self.blocks.head_mut(item)
    }

    pub(in crate::store) fn view(&self, item: BlockId) -> Item<'_> {
        Item::new(&self.blocks, item)
    }

    /// Returns the number of linked items, and the bytes of their keys and values.
    pub(in crate::store) fn linked(&self) -> (u64, u64) {
        (self.linked, self.linked_bytes)
    }

    /// Returns the bytes of all blocks, and of the blocks in use.
    pub(in crate::store) fn memory(&self) -> (u64, u64) {
        let used = self.blocks.count() - self.blocks.free_count();
        ((self.blocks.count() * BLOCK) as u64, (used * BLOCK) as u64)
    }

    /// Makes an item that is neither linked nor held, without its value. Unlinks the items whose
    /// last use is the longest ago to make room, and passes each to `evicted` first.
    ///
    /// # Errors
    /// [`StoreError::Full`] if held items leave no room. No item is unlinked then.
    pub(in crate::store) fn make(
        &mut self,
        key: &Key<'_>,
        value_len: usize,
        mut evicted: impl FnMut(&Head),
    ) -> Result<BlockId, StoreError> {
        let count = blocks_of(key.bytes().len() + value_len);
        if count > self.blocks.count() - self.held_blocks {
            return Err(StoreError::Full);
        }
        let item = loop {
            if let Some(item) = self.blocks.allocate(count) {
                break item;
            }
            let oldest = self.lru.oldest().ok_or(StoreError::Full)?;
            evicted(self.blocks.head(oldest));
            self.unlink(oldest);
        };
        let head = self.blocks.head_mut(item);
        *head = Head {
            next: head.next,
            chain: NONE,
            older: NONE,
            newer: NONE,
            low_hash: key.low_hash(),
            value_len: value_len as u32,
            flags: 0,
            refs: 0,
            key_len: key.bytes().len() as u8,
            is_linked: 0,
            version: 0,
            expires: 0,
        };
        let mut cursor = self.blocks.cursor(item, 0);
        self.blocks.write(&mut cursor, key.bytes());
        Ok(item)
    }

    /// Links an item, as the newest. The index has no other item with its key.
    pub(in crate::store) fn link(&mut self, item: BlockId) {
        self.index.insert(&mut self.blocks, item);
        self.lru.insert(&mut self.blocks, item);
        self.blocks.head_mut(item).is_linked = 1;
        self.linked += 1;
        self.linked_bytes += bytes_of(self.blocks.head(item)) as u64;
    }

    /// Unlinks an item. Its blocks are free unless it is held.
    pub(in crate::store) fn unlink(&mut self, item: BlockId) {
        self.index.remove(&mut self.blocks, item);
        self.lru.remove(&mut self.blocks, item);
        self.blocks.head_mut(item).is_linked = 0;
        self.linked -= 1;
        self.linked_bytes -= bytes_of(self.blocks.head(item)) as u64;
        self.free_unused(item);
    }

    /// Makes a linked item the newest.
    pub(in crate::store) fn refresh(&mut self, item: BlockId) {
        self.lru.refresh(&mut self.blocks, item);
    }

    /// Holds an item for a transfer.
    pub(in crate::store) fn hold(&mut self, item: BlockId) {
        let head = self.blocks.head_mut(item);
        head.refs += 1;
        if head.refs == 1 {
            self.held_blocks += blocks_of(bytes_of(head));
        }
    }

    /// Ends a hold.
    pub(in crate::store) fn unhold(&mut self, item: BlockId) {
        let head = self.blocks.head_mut(item);
        head.refs -= 1;
        if head.refs == 0 {
            self.held_blocks -= blocks_of(bytes_of(head));
            self.free_unused(item);
        }
    }

    fn free_unused(&mut self, item: BlockId) {
        let head = self.blocks.head(item);
        if head.is_linked == 0 && head.refs == 0 {
            self.blocks.release(item);
        }
    }

    /// Returns the place at which the value of an item begins.
    pub(in crate::store) fn value(&self, item: BlockId) -> Cursor {
        self.blocks.cursor(item, self.blocks.head(item).key_len.into())
    }

    /// Writes a part of a value, and moves the place behind it.
    pub(in crate::store) fn write(&mut self, place: &mut Cursor, bytes: &[u8]) {
        self.blocks.write(place, bytes);
    }

    /// Copies the value of an item to a place, and moves the place behind it.
    pub(in crate::store) fn copy_value(&mut self, from: BlockId, to: &mut Cursor) {
        let (mut source, len) = (self.value(from), self.blocks.head(from).value_len as usize);
        self.blocks.copy(&mut source, to, len);
    }

    /// Appends the next `len` bytes at a place to `out`, and moves the place behind them.
    pub(in crate::store) fn read(&self, place: &mut Cursor, mut len: usize, out: &mut Vec<u8>) {
        out.reserve(len);
        while len > 0 {
            let piece = self.blocks.read(place, len);
            out.extend_from_slice(piece);
            len -= piece.len();
        }
    }

    /// Copies the key of an item. Returns it with its hash half.
    pub(in crate::store) fn key_of<'a>(&self, item: BlockId, bytes: &'a mut [u8; MAX_KEY]) -> Key<'a> {
        let head = self.blocks.head(item);
        let (len, mut cursor, mut at) = (usize::from(head.key_len), self.blocks.cursor(item, 0), 0);
        while at < len {
            let piece = self.blocks.read(&mut cursor, len - at);
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Key::of_stored(&bytes[..len], head.low_hash)
    }

    /// Returns the linked items, the newest first, after a check of all invariants.
    #[cfg(test)]
    pub(in crate::store) fn check(&self) -> Vec<BlockId> {
        let (newest_first, mut used) = (self.lru.list(&self.blocks), 0);
        for item in &newest_first {
            let mut bytes = [0; MAX_KEY];
            assert_eq!(self.find(&self.key_of(*item, &mut bytes)), Some(*item));
            let head = self.head(*item);
            assert_eq!(head.is_linked, 1);
            used += if head.refs == 0 { blocks_of(bytes_of(head)) } else { 0 };
        }
        assert_eq!(self.linked, newest_first.len() as u64);
        assert_eq!(used + self.held_blocks + self.blocks.free_count(), self.blocks.count());
        newest_first
    }

    #[cfg(test)]
    pub(in crate::store) fn counts(&self) -> (usize, usize) {
        (self.blocks.count(), self.blocks.free_count())
    }
}

/// Returns the length of an item's key and value.
fn bytes_of(head: &Head) -> usize {
    usize::from(head.key_len) + head.value_len as usize
}
