//! The index of a partition: a hash table whose buckets are chains of items.
//!
//! The number of buckets is that of the blocks, so a bucket has at most one item on average. The
//! table never grows.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::TryReserveError;

use super::blocks::{BlockId, Blocks, NONE};
use crate::store::key::{self, Key};

/// The buckets of a partition.
pub(in crate::store) struct Index {
    buckets: Vec<BlockId>,
}

impl Index {
    /// Takes memory for `count` buckets, at least 1.
    pub(in crate::store) fn new(count: usize) -> Result<Index, TryReserveError> {
        let mut buckets = Vec::new();
        buckets.try_reserve_exact(count)?;
        buckets.resize(count, NONE);
        Ok(Index { buckets })
    }

    /// Returns the item with this key.
    pub(in crate::store) fn find(&self, blocks: &Blocks, key: &Key<'_>) -> Option<BlockId> {
        let mut item = self.buckets[key::bucket(key.low_hash(), self.buckets.len())];
        while item != NONE {
            if has_key(blocks, item, key) {
                return Some(item);
            }
            item = blocks.head(item).chain;
        }
        None
    }

    /// Adds an item whose key the index does not have.
    pub(in crate::store) fn insert(&mut self, blocks: &mut Blocks, item: BlockId) {
        let buckets = self.buckets.len();
        let head = blocks.head_mut(item);
        let bucket = &mut self.buckets[key::bucket(head.low_hash, buckets)];
        head.chain = std::mem::replace(bucket, item);
    }

    /// Removes an item.
    pub(in crate::store) fn remove(&mut self, blocks: &mut Blocks, item: BlockId) {
        let head = blocks.head(item);
        let (chain, bucket) = (head.chain, key::bucket(head.low_hash, self.buckets.len()));
        let mut before = self.buckets[bucket];
        if before == item {
            self.buckets[bucket] = chain;
            return;
        }
        while before != NONE {
            let head = blocks.head_mut(before);
            if head.chain == item {
                head.chain = chain;
                return;
            }
            before = head.chain;
        }
    }
}

fn has_key(blocks: &Blocks, item: BlockId, key: &Key<'_>) -> bool {
    let head = blocks.head(item);
    if head.low_hash != key.low_hash() || usize::from(head.key_len) != key.bytes().len() {
        return false;
    }
    let (mut cursor, mut rest) = (blocks.cursor(item, 0), key.bytes());
    while !rest.is_empty() {
        let stored = blocks.read(&mut cursor, rest.len());
        let (now, later) = rest.split_at(stored.len());
        if stored != now {
            return false;
        }
        rest = later;
    }
    true
}
