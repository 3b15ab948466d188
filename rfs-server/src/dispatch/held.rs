//! The inodes that a step has: those that it was begun with, and those that it has asked for since.
//!
//! Shards are waited for in order. What is asked for later may lie in a shard before one that is held; that one is taken if it
//! is free, and if not the step ends and is begun again with all of them. As it may have to end then, a step asks for all
//! before it changes the first: debug builds see to that.
//!
//! Threading: belongs to one thread.

use rfs_proto::Errno;
use smallvec::SmallVec;

use super::shards::{Grip, Mode, Shard, Shards, Writing, place};
use crate::namespace::{Inode, Inodes, InodesMut};

/// Why a step ends.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It fails.
    Errno(Errno),
    /// It has changed nothing, and is to begin again with more.
    Again(Lack),
}

/// What a step lacks.
#[derive(Debug)]
pub(crate) enum Lack {
    /// A shard.
    Shard(usize),
    /// What is above a directory.
    Lineage(u64),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

/// What a step is begun with. It gets longer with each time that the step begins again.
#[derive(Debug, Default)]
pub(super) struct Plan {
    shards: SmallVec<[usize; 4]>,
    lineages: Vec<Vec<u64>>,
    /// A number for a new inode, once one was asked for.
    fresh: Option<u64>,
}

impl Plan {
    /// Begins with these inodes, which need not exist.
    #[inline]
    pub(super) fn new(inos: &[u64]) -> Plan {
        let mut plan = Plan::default();
        inos.iter().for_each(|&ino| plan.add_shard(place(ino)));
        plan
    }

    /// Begins with a shard.
    pub(super) fn shard(at: usize) -> Plan {
        Plan { shards: SmallVec::from_slice(&[at]), ..Plan::default() }
    }

    /// Begins with more. Directories stay where they are from before this until the step is over, if it lacks a lineage.
    pub(super) fn add(&mut self, lack: Lack, shards: &Shards) {
        match lack {
            Lack::Shard(at) => self.add_shard(at),
            Lack::Lineage(directory) => self.lineages.push(shards.lineage(directory)),
        }
    }

    fn add_shard(&mut self, at: usize) {
        if let Err(before) = self.shards.binary_search(&at) {
            self.shards.insert(before, at);
        }
    }
}

/// The inodes that a step has.
pub(crate) struct Held<'a, M: Mode> {
    shards: &'a Shards,
    plan: &'a mut Plan,
    grips: SmallVec<[Grip<'a, M>; 4]>,
    /// It has changed something.
    changed: bool,
    changes: Changes,
}

/// What a step has changed of what is kept for the next server, each once. Nothing is noted where nothing is kept.
#[derive(Debug, Default)]
pub(super) struct Changes {
    noted: bool,
    pub(super) inodes: SmallVec<[u64; 4]>,
    /// Directories and names.
    pub(super) names: SmallVec<[(u64, Box<[u8]>); 2]>,
    /// Inodes that a session has opened or closed, or may write to now.
    pub(super) opens: SmallVec<[(u64, u64); 2]>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        // Names change with their directories.
        self.inodes.is_empty() && self.opens.is_empty()
    }

    #[inline]
    fn inode(&mut self, ino: u64) {
        if self.noted && !self.inodes.contains(&ino) {
            self.inodes.push(ino);
        }
    }

    fn name(&mut self, directory: u64, name: &[u8]) {
        if self.noted {
            self.names.push((directory, name.into()));
        }
    }

    fn open(&mut self, session: u64, ino: u64) {
        if self.noted && !self.opens.contains(&(session, ino)) {
            self.opens.push((session, ino));
        }
    }
}

impl<'a, M: Mode> Held<'a, M> {
    /// Waits for what the plan says. `noted`: somebody asks for the changes.
    #[inline]
    pub(super) fn new(shards: &'a Shards, plan: &'a mut Plan, noted: bool) -> Held<'a, M> {
        let grips = plan.shards.iter().map(|&at| shards.wait(at)).collect();
        let changes = Changes { noted, ..Changes::default() };
        Held { shards, plan, grips, changed: false, changes }
    }

    /// The shard of an inode that was asked for.
    #[inline]
    pub(super) fn shard(&self, ino: u64) -> &Shard {
        &self.grips[self.find(ino)]
    }

    /// The one shard of a step that was begun with one, and asks for no inode.
    pub(super) fn only(&mut self) -> &mut Grip<'a, M> {
        self.changed = true;
        &mut self.grips[0]
    }

    /// Where the shard of an inode is held. A step that has not asked for it is wrong, whatever else is held.
    #[inline]
    fn find(&self, ino: u64) -> usize {
        let at = place(ino);
        let found = self.grips.iter().position(|grip| grip.at == at);
        debug_assert!(found.is_some(), "inode {ino} was not asked for");
        found.unwrap_or(0)
    }

    fn need_shard(&mut self, at: usize) -> Result<(), Stop> {
        if self.grips.iter().any(|grip| grip.at == at) {
            return Ok(());
        }
        debug_assert!(!self.changed, "asks for more after it has changed something");
        let in_order = self.grips.iter().all(|grip| grip.at < at);
        let grip = if in_order { Some(self.shards.wait(at)) } else { self.shards.seize(at) };
        self.grips.push(grip.ok_or(Stop::Again(Lack::Shard(at)))?);
        Ok(())
    }
}

impl Held<'_, Writing> {
    /// The shard of an inode that was asked for, to change.
    pub(super) fn shard_mut(&mut self, ino: u64) -> &mut Shard {
        self.changed = true;
        let at = self.find(ino);
        &mut self.grips[at]
    }

    /// An inode that was asked for, to change what the next server does not have to know. ESTALE if it is gone.
    pub(super) fn passing_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.shard_mut(ino).inodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    /// What a session has open of an inode has changed.
    pub(super) fn opens_changed(&mut self, session: u64, ino: u64) {
        self.changes.open(session, ino);
    }

    /// What has been changed so far.
    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

impl<M: Mode> Inodes for Held<'_, M> {
    type Stop = Stop;

    fn need(&mut self, ino: u64) -> Result<(), Stop> {
        self.need_shard(place(ino))
    }

    fn get(&self, ino: u64) -> Result<&Inode, Errno> {
        self.shard(ino).inodes.get(&ino).ok_or(Errno::ESTALE)
    }
}

impl InodesMut for Held<'_, Writing> {
    fn get_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.changes.inode(ino);
        self.passing_mut(ino)
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
        let lineage = self.plan.lineages.iter().find(|lineage| lineage.first() == Some(&directory));
        Ok(lineage.ok_or(Stop::Again(Lack::Lineage(directory)))?.contains(&ancestor))
    }
}
