//! The inodes, in shards: each has a lock, and holds its inodes with all that belongs to one inode alone, who has it open and who
//! keeps what of it.
//!
//! Threading: a shard is locked to be read by several threads at once, or by one that changes it. Whoever reads notes all the
//! same that somebody keeps what he was told, under a lock within the shard that is held for no more than that.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rfs_proto::ROOT_INO;

use super::{
    meta::View,
    order::{Rank, Token},
};
use crate::{
    keepers::Keepers,
    leases::Leases,
    namespace::Inode,
    numbers::{ByNumber, spread},
    orphans::Orphans,
};

/// How many there are: far more than threads, so that two requests rarely meet in one by chance.
pub(super) const SHARDS: usize = 128;

/// A part of the inodes.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(super) inodes: ByNumber<Inode>,
    pub(super) leases: Leases,
    /// Whoever reads adds to them.
    pub(super) keepers: Mutex<Keepers>,
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
    /// The last number that an inode has got, or will get.
    last_ino: AtomicU64,
    /// Whether a shard that is lower than one that is held is taken when it is free. Tests say no.
    seizes: bool,
}

impl Shards {
    /// All that there is of a file system; no inode has had a number beyond `last`.
    pub(super) fn filled(inodes: ByNumber<Inode>, last: u64) -> Shards {
        let mut shards: Box<[Locked]> = (0..SHARDS).map(|_| Locked::default()).collect();
        for (ino, inode) in inodes {
            shards[place(ino)].0.get_mut().inodes.insert(ino, inode);
        }
        Shards { shards, last_ino: AtomicU64::new(last), seizes: true }
    }

    /// No inode has a number beyond this one.
    pub(super) fn last_number(&self) -> u64 {
        self.last_ino.load(Ordering::Relaxed)
    }

    /// Takes no shard out of order, so that every operation that needs one begins again.
    #[cfg(test)]
    pub(super) fn in_order_only(&mut self) {
        self.seizes = false;
    }

    /// A number that no inode has had.
    pub(super) fn number(&self) -> u64 {
        self.last_ino.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Waits for a shard.
    #[inline]
    pub(super) fn wait<M: Mode>(&self, at: usize) -> Grip<'_, M> {
        let token = Token::wait(Rank::Shard(at));
        Grip { at, guard: M::wait(&self.shards[at].0), _token: token }
    }

    /// Takes a shard if nobody has it.
    #[inline]
    pub(super) fn seize<M: Mode>(&self, at: usize) -> Option<Grip<'_, M>> {
        let guard = M::seize(&self.shards[at].0).filter(|_| self.seizes)?;
        Some(Grip { at, guard, _token: Token::seize(Rank::Shard(at)) })
    }

    /// A directory and those above it, in order. What is above one stays so while nobody renames a directory.
    pub(super) fn lineage(&self, directory: u64) -> Vec<u64> {
        let mut lineage = vec![directory];
        let mut at = directory;
        while at != ROOT_INO {
            let shard = self.wait::<Reading>(place(at));
            // One that is gone has nothing above it.
            let Some(directory) = shard.inodes.get(&at).and_then(Inode::directory) else { break };
            at = directory.parent;
            lineage.push(at);
        }
        lineage
    }
}

/// The shard of an inode.
#[inline]
pub(super) fn place(ino: u64) -> usize {
    // The map within a shard takes its bits from elsewhere.
    (spread(ino) >> 40) as usize % SHARDS
}

/// How shards are locked.
pub(crate) trait Mode: 'static {
    /// What is had of a locked one.
    type Guard<'a>: Deref<Target = Shard>;

    /// Waits for it.
    fn wait(shard: &RwLock<Shard>) -> Self::Guard<'_>;

    /// Takes it if nobody has it.
    fn seize(shard: &RwLock<Shard>) -> Option<Self::Guard<'_>>;

    /// A step is over, and has its shards still.
    fn settle(view: &mut View<'_, Self>)
    where
        Self: Sized;
}

/// To be read.
#[derive(Debug)]
pub(crate) struct Reading;

/// To be changed.
#[derive(Debug)]
pub(crate) struct Writing;

impl Mode for Reading {
    type Guard<'a> = RwLockReadGuard<'a, Shard>;

    fn wait(shard: &RwLock<Shard>) -> RwLockReadGuard<'_, Shard> {
        shard.read()
    }

    fn seize(shard: &RwLock<Shard>) -> Option<RwLockReadGuard<'_, Shard>> {
        shard.try_read()
    }

    #[inline]
    fn settle(_: &mut View<'_, Reading>) {}
}

impl Mode for Writing {
    type Guard<'a> = RwLockWriteGuard<'a, Shard>;

    fn wait(shard: &RwLock<Shard>) -> RwLockWriteGuard<'_, Shard> {
        shard.write()
    }

    fn seize(shard: &RwLock<Shard>) -> Option<RwLockWriteGuard<'_, Shard>> {
        shard.try_write()
    }

    #[inline]
    fn settle(view: &mut View<'_, Writing>) {
        view.commit();
    }
}

/// A shard that is locked.
pub(super) struct Grip<'a, M: Mode> {
    pub(super) at: usize,
    guard: M::Guard<'a>,
    _token: Token,
}

impl<M: Mode> Deref for Grip<'_, M> {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.guard
    }
}

impl DerefMut for Grip<'_, Writing> {
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.guard
    }
}
