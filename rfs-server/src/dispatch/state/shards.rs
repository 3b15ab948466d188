//! The inodes, in shards with a lock each.
//!
//! A shard holds its inodes and all state that belongs to a single inode: open files, cache
//! holders and orphans. The inode number determines the shard.
//!
//! # Concurrency
//! Several threads may lock a shard to read, or one thread to write. A reading thread that
//! returns attributes registers its session as a cache holder, under a mutex within the shard. A
//! thread that waits for several shards locks them in order of their indexes.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rfs_proto::ROOT_INO;

use super::lock_order::{HeldRank, Rank};
use crate::{
    coherence::{cache_holders::CacheHolders, orphans::Orphans},
    metadata::{
        id_map::{ByNumber, spread},
        namespace::inode::Inode,
    },
    session::open_files::OpenFiles,
};

/// The number of shards: far more than threads, so that two requests rarely share a shard by
/// chance.
pub(in crate::dispatch) const SHARDS: usize = 128;

/// A part of the inodes.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(in crate::dispatch) inodes: ByNumber<Inode>,
    pub(in crate::dispatch) open_files: OpenFiles,
    /// Readers of the shard add cache holders, too.
    pub(in crate::dispatch) cache_holders: Mutex<CacheHolders>,
    /// Inodes without a name that sessions may still use.
    pub(in crate::dispatch) orphans: Orphans,
}

/// A shard with its lock, in cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Locked(RwLock<Shard>);

/// All inodes.
#[derive(Debug)]
pub(crate) struct Shards {
    shards: Box<[Locked]>,
    /// The last inode number that was given out.
    last_ino: AtomicU64,
    /// Whether a transaction may take a free shard out of order. Only tests turn it off.
    out_of_order: bool,
}

impl Shards {
    /// Creates the shards of a file system in which no inode has a number above `last`.
    pub(in crate::dispatch) fn filled(inodes: ByNumber<Inode>, last: u64) -> Shards {
        let mut shards: Box<[Locked]> = (0..SHARDS).map(|_| Locked::default()).collect();
        for (ino, inode) in inodes {
            shards[place(ino)].0.get_mut().inodes.insert(ino, inode);
        }
        Shards { shards, last_ino: AtomicU64::new(last), out_of_order: true }
    }

    /// Returns a bound of all inode numbers: no inode has a higher one.
    pub(in crate::dispatch) fn last_number(&self) -> u64 {
        self.last_ino.load(Ordering::Relaxed)
    }

    /// Turns `out_of_order` off, so that each transaction that needs a shard out of order runs
    /// again.
    #[cfg(test)]
    pub(in crate::dispatch) fn lock_in_order_only(&mut self) {
        self.out_of_order = false;
    }

    /// Returns a new inode number.
    pub(in crate::dispatch) fn number(&self) -> u64 {
        self.last_ino.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Blocks until the shard is locked.
    #[inline]
    pub(in crate::dispatch) fn lock<M: Mode>(&self, at: usize) -> ShardGuard<'_, M> {
        let held = HeldRank::lock(Rank::Shard(at));
        ShardGuard { at, guard: M::lock(&self.shards[at].0), _held: held }
    }

    /// Locks the shard if it is free.
    #[inline]
    pub(in crate::dispatch) fn try_lock<M: Mode>(&self, at: usize) -> Option<ShardGuard<'_, M>> {
        let guard = M::try_lock(&self.shards[at].0).filter(|_| self.out_of_order)?;
        Some(ShardGuard { at, guard, _held: HeldRank::try_lock(Rank::Shard(at)) })
    }

    /// Returns a directory and its ancestors, in order. Ancestors do not change while the caller
    /// holds the lock of the tree.
    pub(in crate::dispatch) fn lineage(&self, directory: u64) -> Vec<u64> {
        let mut lineage = vec![directory];
        let mut at = directory;
        while at != ROOT_INO {
            let shard = self.lock::<Reading>(place(at));
            // A removed directory has no ancestors.
            let Some(directory) = shard.inodes.get(&at).and_then(Inode::directory) else { break };
            at = directory.parent;
            lineage.push(at);
        }
        lineage
    }
}

/// Returns the index of an inode's shard.
#[inline]
pub(in crate::dispatch) fn place(ino: u64) -> usize {
    // The hash map within a shard takes other bits of the hash.
    (spread(ino) >> 40) as usize % SHARDS
}

/// How a transaction locks shards.
pub(crate) trait Mode: 'static {
    /// The guard of a locked shard.
    type Guard<'a>: Deref<Target = Shard>;

    /// Blocks until the shard is locked.
    fn lock(shard: &RwLock<Shard>) -> Self::Guard<'_>;

    /// Locks the shard if it is free.
    fn try_lock(shard: &RwLock<Shard>) -> Option<Self::Guard<'_>>;
}

/// Shared locks.
#[derive(Debug)]
pub(crate) struct Reading;

/// Exclusive locks.
#[derive(Debug)]
pub(crate) struct Writing;

impl Mode for Reading {
    type Guard<'a> = RwLockReadGuard<'a, Shard>;

    fn lock(shard: &RwLock<Shard>) -> RwLockReadGuard<'_, Shard> {
        shard.read()
    }

    fn try_lock(shard: &RwLock<Shard>) -> Option<RwLockReadGuard<'_, Shard>> {
        shard.try_read()
    }
}

impl Mode for Writing {
    type Guard<'a> = RwLockWriteGuard<'a, Shard>;

    fn lock(shard: &RwLock<Shard>) -> RwLockWriteGuard<'_, Shard> {
        shard.write()
    }

    fn try_lock(shard: &RwLock<Shard>) -> Option<RwLockWriteGuard<'_, Shard>> {
        shard.try_write()
    }
}

/// A locked shard.
pub(in crate::dispatch) struct ShardGuard<'a, M: Mode> {
    pub(in crate::dispatch) at: usize,
    guard: M::Guard<'a>,
    _held: HeldRank,
}

impl<M: Mode> Deref for ShardGuard<'_, M> {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.guard
    }
}

impl DerefMut for ShardGuard<'_, Writing> {
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.guard
    }
}
