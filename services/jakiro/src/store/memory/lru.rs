//! The order in which the items of a partition were used: a list through their heads.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use super::blocks::{BlockId, Blocks, NONE};

/// The ends of the list.
#[derive(Debug)]
pub(in crate::store) struct Lru {
    newest: BlockId,
    oldest: BlockId,
}

impl Lru {
    pub(in crate::store) fn new() -> Lru {
        Lru { newest: NONE, oldest: NONE }
    }

    /// Returns the item whose last use is the longest ago.
    pub(in crate::store) fn oldest(&self) -> Option<BlockId> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Adds an item that is not in the list, as the newest.
    pub(in crate::store) fn insert(&mut self, blocks: &mut Blocks, item: BlockId) {
        let newest = std::mem::replace(&mut self.newest, item);
        let head = blocks.head_mut(item);
        (head.older, head.newer) = (newest, NONE);
        match newest {
            NONE => self.oldest = item,
            newest => blocks.head_mut(newest).newer = item,
        }
    }

    /// Removes an item.
    pub(in crate::store) fn remove(&mut self, blocks: &mut Blocks, item: BlockId) {
        let head = blocks.head(item);
        let (older, newer) = (head.older, head.newer);
        match older {
            NONE => self.oldest = newer,
            older => blocks.head_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => blocks.head_mut(newer).older = older,
        }
    }

    /// Makes an item of the list the newest.
    pub(in crate::store) fn refresh(&mut self, blocks: &mut Blocks, item: BlockId) {
        if self.newest != item {
            self.remove(blocks, item);
            self.insert(blocks, item);
        }
    }

    /// Returns all items, the newest first.
    #[cfg(test)]
    pub(in crate::store) fn list(&self, blocks: &Blocks) -> Vec<BlockId> {
        let next = |item: &BlockId| Some(blocks.head(*item).older).filter(|older| *older != NONE);
        let first = Some(self.newest).filter(|newest| *newest != NONE);
        let items: Vec<BlockId> = std::iter::successors(first, next).collect();
        assert_eq!(self.oldest(), items.last().copied());
        items
    }
}
