//! The inodes that a transaction has locked, and those that it locks as it goes.
//!
//! A transaction blocks for shards in order of their indexes. If it needs a shard below the last
//! one, it takes the shard only if that is free. If not, it stops and runs again with all of
//! them. So it must lock all shards before its first change; debug builds check that.
//!
//! # Concurrency
//! Belongs to one thread.

use rfs_proto::Errno;
use smallvec::SmallVec;

use crate::{
    dispatch::state::shards::{Mode, Shard, ShardGuard, Shards, Writing, place},
    metadata::namespace::{
        inode::Inode,
        inodes::{Inodes, InodesMut},
    },
};

/// Why a transaction stops.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The request fails.
    Errno(Errno),
    /// Nothing is changed yet, and the transaction runs again with more locks.
    Retry(MissingLock),
}

/// A lock that a transaction needs.
#[derive(Debug)]
pub(crate) enum MissingLock {
    /// The shard of this index.
    Shard(usize),
    /// The ancestors of this directory.
    Lineage(u64),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

/// The locks with which a transaction starts. A transaction that runs again adds to it.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Plan {
    shards: SmallVec<[usize; 4]>,
    lineages: Vec<Vec<u64>>,
    /// The number of the new inode, once the transaction has asked for it.
    fresh: Option<u64>,
}

impl Plan {
    /// Starts with the shards of these inodes, which need not exist.
    #[inline]
    pub(in crate::dispatch) fn new(inos: &[u64]) -> Plan {
        let mut plan = Plan::default();
        inos.iter().for_each(|&ino| plan.add_shard(place(ino)));
        plan
    }

    /// Starts with one shard.
    pub(in crate::dispatch) fn shard(at: usize) -> Plan {
        Plan { shards: SmallVec::from_slice(&[at]), ..Plan::default() }
    }

    /// Adds a lock. If it is a lineage, the caller holds the lock of the tree, so directories keep
    /// their ancestors until the transaction is over.
    pub(in crate::dispatch) fn add(&mut self, missing: MissingLock, shards: &Shards) {
        match missing {
            MissingLock::Shard(at) => self.add_shard(at),
            MissingLock::Lineage(directory) => self.lineages.push(shards.lineage(directory)),
        }
    }

    fn add_shard(&mut self, at: usize) {
        if let Err(before) = self.shards.binary_search(&at) {
            self.shards.insert(before, at);
        }
    }
}

/// The locked inodes of a transaction.
pub(crate) struct LockedInodes<'a, M: Mode> {
    shards: &'a Shards,
    plan: &'a mut Plan,
    guards: SmallVec<[ShardGuard<'a, M>; 4]>,
    /// Whether the transaction has changed an inode.
    changed: bool,
    changes: Changes,
}

/// The changes of a transaction that the log records, without duplicates. Empty without a log and
/// a snapshot.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Changes {
    recorded: bool,
    pub(in crate::dispatch) inodes: SmallVec<[u64; 4]>,
    /// Directories and names.
    pub(in crate::dispatch) names: SmallVec<[(u64, Box<[u8]>); 2]>,
    /// Sessions and inodes: the session has opened or closed the inode, or got the right to write.
    pub(in crate::dispatch) opens: SmallVec<[(u64, u64); 2]>,
}

impl Changes {
    pub(in crate::dispatch) fn is_empty(&self) -> bool {
        // A name changes only with its directory.
        self.inodes.is_empty() && self.opens.is_empty()
    }

    #[inline]
    fn inode(&mut self, ino: u64) {
        if self.recorded && !self.inodes.contains(&ino) {
            self.inodes.push(ino);
        }
    }

    fn name(&mut self, directory: u64, name: &[u8]) {
        if self.recorded {
            self.names.push((directory, name.into()));
        }
    }

    fn open(&mut self, session: u64, ino: u64) {
        if self.recorded && !self.opens.contains(&(session, ino)) {
            self.opens.push((session, ino));
        }
    }
}

impl<'a, M: Mode> LockedInodes<'a, M> {
    /// Blocks until the shards of the plan are locked. `recorded` turns on the record of changes.
    #[inline]
    pub(in crate::dispatch) fn new(
        shards: &'a Shards,
        plan: &'a mut Plan,
        recorded: bool,
    ) -> LockedInodes<'a, M> {
        let guards = plan.shards.iter().map(|&at| shards.lock(at)).collect();
        let changes = Changes { recorded, ..Changes::default() };
        LockedInodes { shards, plan, guards, changed: false, changes }
    }

    /// Returns the shard of a locked inode.
    #[inline]
    pub(in crate::dispatch) fn shard(&self, ino: u64) -> &Shard {
        &self.guards[self.find(ino)]
    }

    /// Returns the only shard of a transaction that has locked one shard.
    pub(in crate::dispatch) fn only(&mut self) -> &mut ShardGuard<'a, M> {
        self.changed = true;
        &mut self.guards[0]
    }

    /// Returns the index of the guard of an inode's shard. The transaction must have asked for this
    /// inode; a shard that is locked by chance does not count.
    #[inline]
    fn find(&self, ino: u64) -> usize {
        let at = place(ino);
        let found = self.guards.iter().position(|guard| guard.at == at);
        debug_assert!(found.is_some(), "inode {ino} is not locked");
        found.unwrap_or(0)
    }

    /// Returns a directory and its ancestors, in order. They stay until the transaction is over.
    pub(in crate::dispatch) fn lineage(&self, directory: u64) -> Result<&[u64], Stop> {
        let found = self.plan.lineages.iter().find(|lineage| lineage.first() == Some(&directory));
        found.map(Vec::as_slice).ok_or(Stop::Retry(MissingLock::Lineage(directory)))
    }

    fn need_shard(&mut self, at: usize) -> Result<(), Stop> {
        if self.guards.iter().any(|guard| guard.at == at) {
            return Ok(());
        }
        debug_assert!(!self.changed, "locks more after a change");
        let in_order = self.guards.iter().all(|guard| guard.at < at);
        let guard = if in_order { Some(self.shards.lock(at)) } else { self.shards.try_lock(at) };
        self.guards.push(guard.ok_or(Stop::Retry(MissingLock::Shard(at)))?);
        Ok(())
    }
}

impl LockedInodes<'_, Writing> {
    /// Returns the shard of a locked inode, to change.
    pub(in crate::dispatch) fn shard_mut(&mut self, ino: u64) -> &mut Shard {
        self.changed = true;
        let at = self.find(ino);
        &mut self.guards[at]
    }

    /// Returns a locked inode, to change state that the log does not record. ESTALE if it is gone.
    pub(in crate::dispatch) fn unlogged_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.shard_mut(ino).inodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    /// Records that a session's open files of an inode have changed.
    pub(in crate::dispatch) fn opens_changed(&mut self, session: u64, ino: u64) {
        self.changes.open(session, ino);
    }

    /// Returns the changes so far.
    pub(in crate::dispatch) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

impl<M: Mode> Inodes for LockedInodes<'_, M> {
    type Stop = Stop;

    fn need(&mut self, ino: u64) -> Result<(), Stop> {
        self.need_shard(place(ino))
    }

    fn get(&self, ino: u64) -> Result<&Inode, Errno> {
        self.shard(ino).inodes.get(&ino).ok_or(Errno::ESTALE)
    }
}

impl InodesMut for LockedInodes<'_, Writing> {
    fn get_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.changes.inode(ino);
        self.unlogged_mut(ino)
    }

    fn fresh(&mut self) -> Result<u64, Stop> {
        let ino = *self.plan.fresh.get_or_insert_with(|| self.shards.number());
        self.need(ino)?;
        Ok(ino)
    }

    fn insert(&mut self, ino: u64, inode: Inode) {
        self.plan.fresh = None;
        self.changes.inode(ino);
        self.shard_mut(ino).inodes.insert(ino, inode);
    }

    fn entry_changed(&mut self, directory: u64, name: &[u8]) {
        self.changes.name(directory, name);
    }

    fn remove(&mut self, ino: u64) -> Option<Inode> {
        self.changes.inode(ino);
        self.shard_mut(ino).inodes.remove(&ino)
    }

    fn is_within(&mut self, directory: u64, ancestor: u64) -> Result<bool, Stop> {
        Ok(self.lineage(directory)?.contains(&ancestor))
    }
}
