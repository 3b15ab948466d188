//! Names of directories and the inodes that they stand for, until the server recalls them.
//!
//! A name is added only under a guard that holds recalls off. The lookup must also not overlap with
//! an own change of names in the name's shard. So a name that a recall or an own change has removed
//! does not come back. A full shard drops the names that were not used since its last sweep.
//!
//! The shards divide names, not directories, so that one directory can use the whole cache.
//!
//! # Concurrency
//! Any thread. A shard's lock is held briefly and over no other lock. Nodes are dropped without it.

use std::{hash::BuildHasher, sync::Arc};

use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use crate::cache::nodes::Node;

/// Number of shards is 2 to this power.
const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;

type Name = SmallVec<[u8; 24]>;

#[derive(Debug)]
struct Entry {
    node: Arc<Node>,
    /// True if the name was used since the last sweep.
    used: bool,
}

#[derive(Debug, Default)]
struct Shard {
    directories: FxHashMap<u64, FxHashMap<Name, Entry>>,
    len: usize,
    /// Number of own changes that have begun.
    begun: u64,
    /// Number of own changes in flight.
    in_flight: u32,
}

/// The state before a lookup. `None` if a change was in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(Option<u64>);

/// The names that a mount has cached.
#[derive(Debug)]
pub(crate) struct NameCache {
    shards: Box<[Mutex<Shard>]>,
    /// Maximum number of names of a shard.
    limit: usize,
}

impl NameCache {
    /// Creates a cache of up to `limit` names.
    pub(crate) fn new(limit: usize) -> NameCache {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        NameCache { shards, limit: limit.div_ceil(SHARDS) }
    }

    fn shard(&self, parent: u64, name: &[u8]) -> &Mutex<Shard> {
        let hash = FxBuildHasher.hash_one((parent, name));
        // The tables inside of a shard use other bits.
        &self.shards[(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SHARD_BITS)) as usize]
    }

    /// Returns the inode of a name.
    pub(crate) fn get(&self, parent: u64, name: &[u8]) -> Option<Arc<Node>> {
        let mut shard = self.shard(parent, name).lock();
        let entry = shard.directories.get_mut(&parent)?.get_mut(name)?;
        entry.used = true;
        Some(Arc::clone(&entry.node))
    }

    /// Returns the state to note before the lookup of a name.
    pub(crate) fn mark(&self, parent: u64, name: &[u8]) -> Mark {
        let shard = self.shard(parent, name).lock();
        Mark((shard.in_flight == 0).then_some(shard.begun))
    }

    /// Adds a name, unless an own change has begun since `mark`. The caller holds recalls off.
    pub(crate) fn insert(&self, mark: Mark, parent: u64, name: &[u8], node: &Arc<Node>) {
        if self.limit == 0 {
            return;
        }
        let mut dropped = Vec::new();
        let mut shard = self.shard(parent, name).lock();
        if mark.0 != Some(shard.begun) || shard.in_flight > 0 {
            return;
        }
        if shard.len >= self.limit {
            shard.sweep(&mut dropped);
        }
        shard.put(parent, name, node, &mut dropped);
        drop(shard);
    }

    /// Begins a change of names, each with its directory. Until the returned value is dropped, no
    /// lookup adds these names.
    pub(crate) fn change<'c>(&'c self, names: &[(u64, &[u8])]) -> NameChange<'c> {
        let mut shards: SmallVec<[(&'c Mutex<Shard>, u64); 2]> = SmallVec::new();
        for (parent, name) in names {
            let shard = self.shard(*parent, name);
            if shards.iter().all(|(other, _)| !std::ptr::eq(*other, shard)) {
                let mut locked = shard.lock();
                locked.begun += 1;
                locked.in_flight += 1;
                shards.push((shard, locked.begun));
            }
        }
        NameChange { cache: self, shards }
    }

    /// Removes a name.
    pub(crate) fn remove(&self, parent: u64, name: &[u8]) {
        let removed = self.shard(parent, name).lock().take(parent, name);
        drop(removed);
    }

    /// Removes all names of a directory.
    pub(crate) fn remove_directory(&self, parent: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let removed = shard.directories.remove(&parent);
            shard.len -= removed.as_ref().map_or(0, FxHashMap::len);
            drop(shard);
            drop(removed);
        }
    }

    /// Removes all names.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let removed = std::mem::take(&mut shard.directories);
            shard.len = 0;
            drop(shard);
            drop(removed);
        }
    }

    /// Returns the number of names.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len).sum()
    }
}

impl Shard {
    fn put(&mut self, parent: u64, name: &[u8], node: &Arc<Node>, dropped: &mut Vec<Entry>) {
        let entry = Entry { node: Arc::clone(node), used: true };
        match self.directories.entry(parent).or_default().insert(name.into(), entry) {
            Some(old) => dropped.push(old),
            None => self.len += 1,
        }
    }

    fn take(&mut self, parent: u64, name: &[u8]) -> Option<Entry> {
        let names = self.directories.get_mut(&parent)?;
        let removed = names.remove(name)?;
        if names.is_empty() {
            self.directories.remove(&parent);
        }
        self.len -= 1;
        Some(removed)
    }

    /// Removes the names that were not used since the last sweep. If all were used, removes all.
    fn sweep(&mut self, dropped: &mut Vec<Entry>) {
        let before = dropped.len();
        for used in [false, true] {
            for names in self.directories.values_mut() {
                dropped.extend(names.extract_if(|_, entry| entry.used == used).map(|(_, entry)| entry));
            }
            if dropped.len() > before {
                break;
            }
        }
        self.directories.retain(|_, names| {
            names.values_mut().for_each(|entry| entry.used = false);
            !names.is_empty()
        });
        self.len -= dropped.len() - before;
    }
}

/// An own change of names in flight.
#[derive(Debug)]
pub(crate) struct NameChange<'c> {
    cache: &'c NameCache,
    shards: SmallVec<[(&'c Mutex<Shard>, u64); 2]>,
}

impl NameChange<'_> {
    /// Removes a name that the change concerns.
    pub(crate) fn remove(&self, parent: u64, name: &[u8]) {
        self.cache.remove(parent, name);
    }

    /// Adds a name that the change has made, unless another change of the shard was in flight. The
    /// caller holds recalls off.
    pub(crate) fn insert(&self, parent: u64, name: &[u8], node: &Arc<Node>) {
        if self.cache.limit == 0 {
            return;
        }
        let mut dropped = Vec::new();
        let mut shard = self.cache.shard(parent, name).lock();
        let is_alone = shard.in_flight == 1 && self.shards.iter().any(|(_, begun)| *begun == shard.begun);
        if is_alone {
            if shard.len >= self.cache.limit {
                shard.sweep(&mut dropped);
            }
            shard.put(parent, name, node, &mut dropped);
        }
        drop(shard);
    }
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        for (shard, _) in &self.shards {
            shard.lock().in_flight -= 1;
        }
    }
}
