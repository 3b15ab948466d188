//! Who waits for whom.
//!
//! For locks that are held one waits until they are given up. For the order of a queue nobody waits who would wait for himself.

use std::collections::HashSet;

use rfs_proto::LockClass;

use super::{Locks, Owner, Waiter, held::Lock};

/// What is followed from one who waits to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    /// Locks that are held.
    Held,
    /// And places in a queue.
    All,
}

impl Locks {
    /// True if whoever waits for this lock would wait for himself, over owners of locks that are held; for class record, as fcntl(2)
    /// has it.
    pub(super) fn closes_circle(&self, ino: u64, wanted: &Lock) -> bool {
        let mut walk = Walk::new(self, Follow::Held, wanted.owner);
        wanted.class == LockClass::Record && {
            walk.visit_held(ino, wanted);
            walk.run()
        }
    }

    /// True if a lock has to wait behind somebody who waits for one that conflicts with it: those before place `at` of the queue, or
    /// all of them if it is not in there.
    pub(super) fn is_behind(&self, ino: u64, wanted: &Lock, at: Option<usize>) -> bool {
        let Some(file) = self.file(ino) else { return false };
        let before = &file.queue[..at.unwrap_or(file.queue.len())];
        let mut before = before.iter().filter(|waiter| waiter.wanted.conflicts(wanted));
        // Who has no lock and stands nowhere else is waited for by those behind him only: he closes no circle.
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

    /// The inodes where the order may hold somebody up no more because of one who has begun to wait: he waits for somebody there, who
    /// waits for him; or he waits in two places now.
    pub(super) fn held_up_by_order(&self, ino: u64, new: &Waiter) -> Vec<u64> {
        let owner = new.wanted.owner;
        if self.by_owner.get(&owner).is_some_and(|own| own.len() > 1) {
            return self.waited_for_by(owner);
        }
        let mut walk = Walk::new(self, Follow::All, owner);
        let at = self.file(ino).map_or(0, |file| file.queue.len().saturating_sub(1));
        walk.visit_held(ino, &new.wanted);
        walk.visit_queue(ino, &new.wanted, at);
        match walk.run_through() {
            true => walk.inodes.into_iter().collect(),
            false => Vec::new(),
        }
    }

    /// The inodes where an owner waits, those whom he waits for, and so on.
    pub(super) fn waited_for_by(&self, owner: Owner) -> Vec<u64> {
        let mut walk = Walk::new(self, Follow::All, owner);
        walk.visit_owner(owner);
        walk.run_through();
        walk.inodes.into_iter().collect()
    }
}

/// From one owner to those that he waits for, and so on.
struct Walk<'a> {
    locks: &'a Locks,
    follow: Follow,
    /// Who is looked for.
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

    /// From those who hold what is in the way of a lock.
    fn visit_held(&mut self, ino: u64, wanted: &Lock) {
        if let Some(file) = self.locks.file(ino) {
            file.held.in_the_way(wanted).for_each(|held| self.visit_owner(held.owner));
        }
    }

    /// From those before place `end` of a queue who wait for what is in its way.
    fn visit_queue(&mut self, ino: u64, wanted: &Lock, end: usize) {
        if let Some(file) = self.locks.file(ino) {
            let before = file.queue.iter().take(end).filter(|waiter| waiter.wanted.conflicts(wanted));
            before.for_each(|waiter| self.visit_owner(waiter.wanted.owner));
        }
    }

    /// True if it comes to the target.
    fn run(&mut self) -> bool {
        while !self.found && self.step() {}
        self.found
    }

    /// The same, and all that can be reached has been seen.
    fn run_through(&mut self) -> bool {
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
