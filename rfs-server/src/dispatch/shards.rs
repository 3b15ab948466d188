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

use super::{
    lock_order::{Rank, Token},
    meta::View,
};
use crate::{
    cache_holders::CacheHolders,
    namespace::Inode,
    numbers::{ByNumber, spread},
    open_files::OpenFiles,
    orphans::Orphans,
};

/// The number of shards: far more than threads, so that two requests rarely share a shard by
/// chance.
pub(super) const SHARDS: usize = 128;

/// A part of the inodes.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(super) inodes: ByNumber<Inode>,
    pub(super) open_files: OpenFiles,
    /// Readers of the shard add cache holders, too.
    pub(super) cache_holders: Mutex<CacheHolders>,
    /// Inodes without a name that sessions may still use.
    pub(super) orphans: Orphans,
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
    pub(super) fn filled(inodes: ByNumber<Inode>, last: u64) -> Shards {
        let mut shards: Box<[Locked]> = (0..SHARDS).map(|_| Locked::default()).collect();
        for (ino, inode) in inodes {
            shards[place(ino)].0.get_mut().inodes.insert(ino, inode);
        }
        Shards { shards, last_ino: AtomicU64::new(last), out_of_order: true }
    }

    /// Returns a bound of all inode numbers: no inode has a higher one.
    pub(super) fn last_number(&self) -> u64 {
        self.last_ino.load(Ordering::Relaxed)
    }

    /// Turns `out_of_order` off, so that each transaction that needs a shard out of order runs
    /// again.
    #[cfg(test)]
    pub(super) fn lock_in_order_only(&mut self) {
        self.out_of_order = false;
    }

    /// Returns a new inode number.
    pub(super) fn number(&self) -> u64 {
        self.last_ino.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Blocks until the shard is locked.
    #[inline]
    pub(super) fn lock<M: Mode>(&self, at: usize) -> ShardGuard<'_, M> {
        let token = Token::lock(Rank::Shard(at));
        ShardGuard { at, guard: M::lock(&self.shards[at].0), _token: token }
    }

    /// Locks the shard if it is free.
    #[inline]
    pub(super) fn try_lock<M: Mode>(&self, at: usize) -> Option<ShardGuard<'_, M>> {
        let guard = M::try_lock(&self.shards[at].0).filter(|_| self.out_of_order)?;
        Some(ShardGuard { at, guard, _token: Token::try_lock(Rank::Shard(at)) })
    }

    /// Returns a directory and its ancestors, in order. Ancestors do not change while the caller
    /// holds the lock of the tree.
    pub(super) fn lineage(&self, directory: u64) -> Vec<u64> {
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
pub(super) fn place(ino: u64) -> usize {
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

    /// Completes a transaction, which still holds its shards.
    fn settle(view: &mut View<'_, Self>)
    where
        Self: Sized;
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

    #[inline]
    fn settle(_: &mut View<'_, Reading>) {}
}

impl Mode for Writing {
    type Guard<'a> = RwLockWriteGuard<'a, Shard>;

    fn lock(shard: &RwLock<Shard>) -> RwLockWriteGuard<'_, Shard> {
        shard.write()
    }

    fn try_lock(shard: &RwLock<Shard>) -> Option<RwLockWriteGuard<'_, Shard>> {
        shard.try_write()
    }

    #[inline]
    fn settle(view: &mut View<'_, Writing>) {
        view.commit();
    }
}

/// A locked shard.
pub(super) struct ShardGuard<'a, M: Mode> {
    pub(super) at: usize,
    guard: M::Guard<'a>,
    _token: Token,
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
