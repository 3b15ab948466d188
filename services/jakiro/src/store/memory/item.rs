//! An item of a partition, as its readers see it.
//!
//! # Concurrency
//! Borrows the partition.

use super::blocks::{BlockId, Blocks, Cursor};

/// The time of items that do not expire.
pub const NEVER: u64 = u64::MAX;

/// A stored item, until the partition changes.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    blocks: &'a Blocks,
    item: BlockId,
}

impl std::fmt::Debug for Item<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("head", self.blocks.head(self.item)).finish()
    }
}

impl<'a> Item<'a> {
    pub(in crate::store) fn new(blocks: &'a Blocks, item: BlockId) -> Item<'a> {
        Item { blocks, item }
    }

    /// Returns the length of the value in bytes.
    pub fn value_len(&self) -> usize {
        self.blocks.head(self.item).value_len as usize
    }

    /// Returns the flags that were stored with the value.
    pub fn flags(&self) -> u32 {
        self.blocks.head(self.item).flags
    }

    /// Returns the version: each change of the value has another one.
    pub fn version(&self) -> u64 {
        self.blocks.head(self.item).version
    }

    /// Returns the time in milliseconds at which the item expires, or [`NEVER`].
    pub fn expires(&self) -> u64 {
        self.blocks.head(self.item).expires
    }

    /// Returns the value in pieces, in order.
    pub fn pieces(&self) -> Pieces<'a> {
        let at = usize::from(self.blocks.head(self.item).key_len);
        Pieces { blocks: self.blocks, cursor: self.blocks.cursor(self.item, at), left: self.value_len() }
    }

    /// Appends the value to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.value_len());
        self.pieces().for_each(|piece| out.extend_from_slice(piece));
    }
}

/// The pieces of a value.
pub struct Pieces<'a> {
    blocks: &'a Blocks,
    cursor: Cursor,
    left: usize,
}

impl std::fmt::Debug for Pieces<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("left", &self.left).finish_non_exhaustive()
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let piece = self.blocks.read(&mut self.cursor, self.left);
        self.left -= piece.len();
        Some(piece)
    }
}
