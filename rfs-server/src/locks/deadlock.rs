//! Deadlock detection over the graph of lock waits.
//!
//! A waiter waits for the holders of conflicting locks. It also waits for earlier conflicting
//! waiters of its queue, unless that order alone would make it wait for itself.
//!
//! # Concurrency
//! None; the caller holds the lock that protects [`Locks`].

use std::collections::HashSet;

use rfs_proto::LockClass;

use super::{
    Locks, Waiter,
    held_locks::{Lock, Owner},
};

/// Edges that a walk follows from a waiter to other owners.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    /// To holders of conflicting locks.
    Held,
    /// Also to earlier conflicting waiters of its queue.
    All,
}

impl Locks {
    /// Returns true if a wait for this record lock would close a cycle of waiters and holders,
    /// which fcntl(2) reports as EDEADLK. Always false for flock.
    pub(super) fn closes_cycle(&self, ino: u64, wanted: &Lock) -> bool {
        let mut walk = Walk::new(self, Follow::Held, wanted.owner);
        wanted.class == LockClass::Record && {
            walk.visit_held(ino, wanted);
            walk.run()
        }
    }

    /// Returns true if `wanted` must queue behind an earlier conflicting waiter. Skips waiters that
    /// transitively wait for the owner of `wanted`: to queue behind them would deadlock. `at` is
    /// the request's own queue position, `None` if it is not queued.
    pub(super) fn is_behind(&self, ino: u64, wanted: &Lock, at: Option<usize>) -> bool {
        let Some(file) = self.file(ino) else { return false };
        let before = &file.queue[..at.unwrap_or(file.queue.len())];
        let mut before = before.iter().filter(|waiter| waiter.wanted.conflicts(wanted));
        // If the owner holds no lock and waits nowhere else, only later waiters of this queue wait
        // for it: no cycle.
        let places = self.by_owner.get(&wanted.owner).map_or(0, Vec::len);
        if !self.holding.contains_key(&wanted.owner) && places <= usize::from(at.is_some()) {
            return before.next().is_some();
        }
        before.any(|waiter| {
            let mut walk = Walk::new(self, Follow::All, wanted.owner);
            walk.visit_owner(waiter.wanted.owner);
            !walk.run()
        })
    }

    /// Returns the inodes whose queues must be checked again: the new waiter closes a cycle through
    /// queue order, or its owner waits twice.
    pub(super) fn freed_from_order(&self, ino: u64, new: &Waiter) -> Vec<u64> {
        let owner = new.wanted.owner;
        if self.by_owner.get(&owner).is_some_and(|own| own.len() > 1) {
            return self.inodes_waited_for(owner);
        }
        let mut walk = Walk::new(self, Follow::All, owner);
        let at = self.file(ino).map_or(0, |file| file.queue.len().saturating_sub(1));
        walk.visit_held(ino, &new.wanted);
        walk.visit_queue(ino, &new.wanted, at);
        match walk.run_to_end() {
            true => walk.inodes.into_iter().collect(),
            false => Vec::new(),
        }
    }

    /// Returns the inodes where an owner waits, and where the owners wait that it transitively
    /// waits for.
    pub(super) fn inodes_waited_for(&self, owner: Owner) -> Vec<u64> {
        let mut walk = Walk::new(self, Follow::All, owner);
        walk.visit_owner(owner);
        walk.run_to_end();
        walk.inodes.into_iter().collect()
    }
}

/// A search from an owner over the owners that it transitively waits for.
struct Walk<'a> {
    locks: &'a Locks,
    follow: Follow,
    /// The owner that the search looks for.
    target: Owner,
    found: bool,
    seen: HashSet<Owner>,
    open: Vec<Owner>,
    inodes: HashSet<u64>,
}

impl<'a> Walk<'a> {
    fn new(locks: &'a Locks, follow: Follow, target: Owner) -> Walk<'a> {
        let (seen, open, inodes) = (HashSet::new(), Vec::new(), HashSet::new());
        Walk { locks, follow, target, found: false, seen, open, inodes }
    }

    fn visit_owner(&mut self, owner: Owner) {
        self.found |= owner == self.target;
        if self.seen.insert(owner) {
            self.open.push(owner);
        }
    }

    /// Visits the holders of locks that conflict with `wanted`.
    fn visit_held(&mut self, ino: u64, wanted: &Lock) {
        if let Some(file) = self.locks.file(ino) {
            file.held.conflicting(wanted).for_each(|held| self.visit_owner(held.owner));
        }
    }

    /// Visits the waiters before position `end` of the queue that conflict with `wanted`.
    fn visit_queue(&mut self, ino: u64, wanted: &Lock, end: usize) {
        if let Some(file) = self.locks.file(ino) {
            let before = file.queue.iter().take(end).filter(|waiter| waiter.wanted.conflicts(wanted));
            before.for_each(|waiter| self.visit_owner(waiter.wanted.owner));
        }
    }

    /// Searches until it reaches the target. Returns true if it does.
    fn run(&mut self) -> bool {
        while !self.found && self.step() {}
        self.found
    }

    /// Searches all owners that can be reached. Returns true if the target is one of them.
    fn run_to_end(&mut self) -> bool {
        while self.step() {}
        self.found
    }

    fn step(&mut self) -> bool {
        let Some(owner) = self.open.pop() else { return false };
        for ticket in self.locks.by_owner.get(&owner).into_iter().flatten() {
            let Some(&ino) = self.locks.tickets.get(ticket) else { continue };
            let queue = self.locks.file(ino).map_or(&[][..], |file| &file.queue[..]);
            let Some(at) = queue.iter().position(|waiter| waiter.ticket() == *ticket) else { continue };
            let Waiter { wanted, insists, .. } = queue[at];
            self.inodes.insert(ino);
            self.visit_held(ino, &wanted);
            if self.follow == Follow::All && !insists {
                self.visit_queue(ino, &wanted, at);
            }
        }
        true
    }
}
