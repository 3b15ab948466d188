//! The locks that are held on one file. No I/O, no clock.
//!
//! # Concurrency
//! None; the caller holds the lock that protects [`Locks`](super::Locks).

use rfs_proto::{LockClass, LockKind, LockRange};
use seeded_faults::seeded;
use serde::{Deserialize, Serialize};

/// Owner of a lock: the session, and the client's number of the owner.
pub type Owner = (u64, u64);

/// Lock state of an owner in a range. It replaces all earlier state of the owner in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    /// Session and lock owner.
    pub owner: Owner,
    /// Record lock or flock.
    pub class: LockClass,
    /// Shared, exclusive or unlocked.
    pub kind: LockKind,
    /// Range of bytes.
    pub range: LockRange,
    /// Process that F_GETLK reports.
    pub pid: u32,
}

/// A lock that is held or requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) owner: Owner,
    pub(super) class: LockClass,
    pub(super) exclusive: bool,
    pub(super) range: LockRange,
    pub(super) pid: u32,
}

impl Lock {
    /// Returns whether the lock is shared or exclusive.
    pub(super) fn kind(&self) -> LockKind {
        if self.exclusive { LockKind::Exclusive } else { LockKind::Shared }
    }

    /// Returns the lock as other modules see it.
    pub(super) fn describe(&self) -> Locked {
        let Lock { owner, class, range, pid, .. } = *self;
        Locked { owner, class, kind: self.kind(), range, pid }
    }

    /// Returns true if this lock, once granted, replaces a part of the lock `held` of its owner.
    fn replaces(&self, held: &Lock) -> bool {
        (held.owner, held.class) == (self.owner, self.class) && held.range.overlaps(&self.range)
    }

    /// Returns true if two owners cannot hold the two locks at the same time.
    pub(super) fn conflicts(&self, other: &Lock) -> bool {
        self.class == other.class
            && self.owner != other.owner
            && (self.exclusive || (other.exclusive && !seeded!(ReadersIgnored)))
            && self.range.overlaps(&other.range)
    }
}

/// Locks of a file. Locks of the same owner and class do not overlap; if they have the same kind,
/// they are not adjacent either.
#[derive(Debug, Default)]
pub(super) struct HeldLocks(Vec<Lock>);

impl HeldLocks {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the held locks that conflict with `of`.
    pub(super) fn conflicting(&self, of: &Lock) -> impl Iterator<Item = &Lock> {
        self.0.iter().filter(move |held| held.conflicts(of))
    }

    /// Adds a lock without conflicts; it replaces the locks of its owner in the range.
    pub(super) fn insert(&mut self, mut new: Lock) {
        seeded!(UpgradeLost => new.exclusive &= !self.0.iter().any(|held| new.replaces(held)));
        self.release(&new);
        // Adjacent locks are merged, so that their number stays bounded.
        self.0.retain(|held| {
            let same = (held.owner, held.class, held.exclusive) == (new.owner, new.class, new.exclusive);
            let before = held.range.last.checked_add(1) == Some(new.range.first);
            let behind = new.range.last.checked_add(1) == Some(held.range.first);
            if same && (before || behind) {
                new.range.first = new.range.first.min(held.range.first);
                new.range.last = new.range.last.max(held.range.last);
            }
            !(same && (before || behind))
        });
        self.0.push(new);
    }

    /// Removes a range from the locks of its owner.
    pub(super) fn release(&mut self, released: &Lock) {
        let range = &released.range;
        let mut rest = Vec::new();
        self.0.retain(|held| {
            let hit = released.replaces(held);
            if hit {
                let LockRange { first, last } = held.range;
                if first < range.first {
                    rest.push(Lock { range: LockRange { first, last: range.first - 1 }, ..*held });
                }
                if last > range.last {
                    rest.push(Lock { range: LockRange { first: range.last + 1, last }, ..*held });
                }
            }
            !hit
        });
        self.0.extend(rest);
    }

    /// Returns all locks.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.iter()
    }

    /// Returns true if the owner has a lock in the range.
    pub(super) fn has_any(&self, Lock { owner, class, range, .. }: &Lock) -> bool {
        self.0.iter().any(|held| (held.owner, held.class) == (*owner, *class) && held.range.overlaps(range))
    }

    /// Returns true if the removal of this range would split a lock in two.
    pub(super) fn would_split(&self, Lock { owner, class, range, .. }: &Lock) -> bool {
        self.0.iter().any(|held| {
            (held.owner, held.class) == (*owner, *class)
                && held.range.first < range.first
                && held.range.last > range.last
        })
    }

    /// Returns the owners of a session's locks, possibly with repetitions.
    pub(super) fn owners(&self, session: u64) -> impl Iterator<Item = Owner> {
        self.0.iter().map(|held| held.owner).filter(move |owner| owner.0 == session)
    }

    /// Removes all locks of an owner.
    pub(super) fn drop_owner(&mut self, owner: Owner) {
        self.0.retain(|held| held.owner != owner);
    }
}
