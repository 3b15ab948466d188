//! The memory of a partition: blocks of 128 bytes, chained to items.
//!
//! An item is a chain of blocks. The first block begins with the [`Head`] of the item, and each
//! further block with the number of the next. Key and value lie one after the other in the rest.
//! Equal blocks leave no gaps, so each free block serves each item. The invariant: a block is in
//! the chain of one item, or in the list of free blocks.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::TryReserveError;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute_mut, transmute_ref};

/// Length of a block, in bytes.
pub(in crate::store) const BLOCK: usize = 128;
/// Bytes of an item in its first block, and in each further block.
const FIRST: usize = BLOCK - size_of::<Head>();
const MORE: usize = BLOCK - size_of::<u32>();
/// Maximum number of blocks: [`NONE`] is no block.
pub(in crate::store) const MAX_BLOCKS: usize = u32::MAX as usize;

/// Number of a block.
pub(in crate::store) type BlockId = u32;
/// The end of a chain or list.
pub(in crate::store) const NONE: BlockId = BlockId::MAX;

/// The begin of an item.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::store) struct Head {
    /// Next block of the item. The offset is that in [`More`].
    pub(in crate::store) next: BlockId,
    /// Next item of the bucket.
    pub(in crate::store) chain: BlockId,
    /// Neighbours in the order of use.
    pub(in crate::store) older: BlockId,
    pub(in crate::store) newer: BlockId,
    /// The half of the hash that selects the bucket.
    pub(in crate::store) low_hash: u32,
    pub(in crate::store) value_len: u32,
    pub(in crate::store) flags: u32,
    /// Number of references: one of the index, and one of each transfer.
    pub(in crate::store) refs: u16,
    pub(in crate::store) key_len: u8,
    /// 1 if the index has the item.
    pub(in crate::store) is_linked: u8,
    pub(in crate::store) version: u64,
    /// Time in milliseconds at which the item expires.
    pub(in crate::store) expires: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct First {
    head: Head,
    bytes: [u8; FIRST],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct More {
    next: BlockId,
    bytes: [u8; MORE],
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Block([u64; BLOCK / 8]);

/// Returns the number of blocks of an item whose key and value have `len` bytes together.
pub(in crate::store) const fn blocks_of(len: usize) -> usize {
    1 + len.saturating_sub(FIRST).div_ceil(MORE)
}

/// A place in an item, from which its next bytes are read or written.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Cursor {
    block: BlockId,
    /// The block is the first one of its item.
    is_first: bool,
    /// Bytes of the block in front of the place.
    at: usize,
}

/// The blocks of a partition.
pub(in crate::store) struct Blocks {
    blocks: Vec<Block>,
    /// Head of the list of free blocks.
    free: BlockId,
    free_count: usize,
}

impl Blocks {
    /// Takes memory for `count` blocks and touches all of it.
    pub(in crate::store) fn new(count: usize) -> Result<Blocks, TryReserveError> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count)?;
        blocks.resize(count, Block([0; BLOCK / 8]));
        let mut blocks = Blocks { blocks, free: NONE, free_count: count };
        // The lowest block comes first, so that the first long items are contiguous.
        for block in (0..count as BlockId).rev() {
            let next = blocks.free;
            blocks.set_next(block, next);
            blocks.free = block;
        }
        Ok(blocks)
    }

    pub(in crate::store) fn count(&self) -> usize {
        self.blocks.len()
    }

    pub(in crate::store) fn free_count(&self) -> usize {
        self.free_count
    }

    /// Chains `count` free blocks, at least 1. Returns the first, or `None` if there are fewer.
    pub(in crate::store) fn allocate(&mut self, count: usize) -> Option<BlockId> {
        if count > self.free_count {
            return None;
        }
        let first = self.free;
        let mut last = first;
        for _ in 1..count {
            last = self.next(last);
        }
        self.free = self.next(last);
        self.free_count -= count;
        self.set_next(last, NONE);
        Some(first)
    }

    /// Makes the blocks of a chain free.
    pub(in crate::store) fn release(&mut self, first: BlockId) {
        let (mut last, mut count) = (first, 1);
        loop {
            match self.next(last) {
                NONE => break,
                next => last = next,
            }
            count += 1;
        }
        let free = self.free;
        self.set_next(last, free);
        self.free = first;
        self.free_count += count;
    }

    pub(in crate::store) fn head(&self, item: BlockId) -> &Head {
        &self.first(item).head
    }

    pub(in crate::store) fn head_mut(&mut self, item: BlockId) -> &mut Head {
        let first: &mut First = transmute_mut!(&mut self.blocks[item as usize].0);
        &mut first.head
    }

    /// Returns the place of byte `at` of an item.
    pub(in crate::store) fn cursor(&self, item: BlockId, at: usize) -> Cursor {
        let mut cursor = Cursor { block: item, is_first: true, at: 0 };
        self.skip(&mut cursor, at);
        cursor
    }

    /// Moves a place by `len` bytes.
    fn skip(&self, cursor: &mut Cursor, mut len: usize) {
        while len > 0 {
            let step = len.min(self.room(cursor));
            cursor.at += step;
            len -= step;
        }
    }

    /// Writes bytes at a place, and moves the place behind them.
    pub(in crate::store) fn write(&mut self, cursor: &mut Cursor, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.room(cursor)));
            let block = &mut self.blocks[cursor.block as usize].0;
            let room: &mut [u8] = if cursor.is_first {
                let first: &mut First = transmute_mut!(block);
                &mut first.bytes
            } else {
                let more: &mut More = transmute_mut!(block);
                &mut more.bytes
            };
            room[cursor.at..cursor.at + now.len()].copy_from_slice(now);
            cursor.at += now.len();
            bytes = later;
        }
    }

    /// Copies `len` bytes from one place to another, and moves both.
    pub(in crate::store) fn copy(&mut self, from: &mut Cursor, to: &mut Cursor, mut len: usize) {
        let mut piece = [0; MORE];
        while len > 0 {
            let bytes = self.read(from, len);
            let count = bytes.len();
            piece[..count].copy_from_slice(bytes);
            self.write(to, &piece[..count]);
            len -= count;
        }
    }

    /// Returns the next bytes at a place, up to `len` and at least 1, and moves the place behind
    /// them.
    pub(in crate::store) fn read(&self, cursor: &mut Cursor, len: usize) -> &[u8] {
        let count = len.min(self.room(cursor));
        let at = cursor.at;
        cursor.at += count;
        &self.bytes(cursor)[at..at + count]
    }

    /// Returns the number of bytes behind the place in its block. Moves a place at the end of a
    /// block to the next block.
    fn room(&self, cursor: &mut Cursor) -> usize {
        let len = if cursor.is_first { FIRST } else { MORE };
        if cursor.at < len {
            return len - cursor.at;
        }
        *cursor = Cursor { block: self.next(cursor.block), is_first: false, at: 0 };
        MORE
    }

    fn bytes(&self, cursor: &Cursor) -> &[u8] {
        if cursor.is_first { &self.first(cursor.block).bytes } else { &self.more(cursor.block).bytes }
    }

    fn first(&self, block: BlockId) -> &First {
        transmute_ref!(&self.blocks[block as usize].0)
    }

    fn more(&self, block: BlockId) -> &More {
        transmute_ref!(&self.blocks[block as usize].0)
    }

    fn next(&self, block: BlockId) -> BlockId {
        self.more(block).next
    }

    fn set_next(&mut self, block: BlockId, next: BlockId) {
        let more: &mut More = transmute_mut!(&mut self.blocks[block as usize].0);
        more.next = next;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const _: () = assert!(size_of::<Head>() == 48);

    #[test]
    fn a_key_of_16_and_a_value_of_64_bytes_fit_one_block() {
        assert_eq!(
            [blocks_of(1), blocks_of(80), blocks_of(81), blocks_of(204), blocks_of(205)],
            [1, 1, 2, 2, 3]
        );
    }

    fn read_all(blocks: &Blocks, item: BlockId, at: usize, len: usize) -> Vec<u8> {
        let (mut cursor, mut found) = (blocks.cursor(item, at), Vec::new());
        while found.len() < len {
            found.extend_from_slice(blocks.read(&mut cursor, len - found.len()));
        }
        found
    }

    proptest! {
        /// Chains keep their bytes, in any order of allocation and release.
        #[test]
        fn chains_do_not_overlap(steps in prop::collection::vec((0..600_usize, any::<u8>(), any::<bool>()), 1..80)) {
            let mut blocks = Blocks::new(20).unwrap();
            let mut chains: Vec<(BlockId, Vec<u8>)> = Vec::new();
            for (len, fill, release) in steps {
                if release && !chains.is_empty() {
                    let (item, _) = chains.swap_remove(usize::from(fill) % chains.len());
                    blocks.release(item);
                }
                let free = blocks.free_count();
                match blocks.allocate(blocks_of(len)) {
                    None => prop_assert!(free < blocks_of(len)),
                    Some(item) => {
                        let bytes: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
                        let mut cursor = blocks.cursor(item, 0);
                        bytes.chunks(97).for_each(|part| blocks.write(&mut cursor, part));
                        chains.push((item, bytes));
                    }
                }
                let used: usize = chains.iter().map(|(_, bytes)| blocks_of(bytes.len())).sum();
                prop_assert_eq!(used + blocks.free_count(), blocks.count());
                for (item, bytes) in &chains {
                    let at = bytes.len() / 3;
                    prop_assert_eq!(&read_all(&blocks, *item, at, bytes.len() - at), &bytes[at..]);
                }
            }
        }

        #[test]
        fn a_copy_is_equal(len in 1..500_usize, from in 0..100_usize, to in 0..300_usize) {
            let mut blocks = Blocks::new(20).unwrap();
            let [source, target] = [from + len, to + len].map(|len| blocks.allocate(blocks_of(len)).unwrap());
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut cursor = blocks.cursor(source, from);
            blocks.write(&mut cursor, &bytes);
            let (mut from, mut place) = (blocks.cursor(source, from), blocks.cursor(target, to));
            blocks.copy(&mut from, &mut place, len);
            prop_assert_eq!(read_all(&blocks, target, to, len), bytes);
        }
    }
}
