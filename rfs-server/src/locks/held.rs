//! The locks that are held on one file.

use rfs_proto::{LockClass, LockKind, LockRange};
use seeded_faults::{Fault, seeded};

use super::Owner;

/// A lock, held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) owner: Owner,
    pub(super) class: LockClass,
    pub(super) exclusive: bool,
    pub(super) range: LockRange,
    pub(super) pid: u32,
}

impl Lock {
    /// What was asked for.
    pub(super) fn kind(&self) -> LockKind {
        if self.exclusive { LockKind::Exclusive } else { LockKind::Shared }
    }

    /// True if the two cannot be held at the same time.
    pub(super) fn conflicts(&self, other: &Lock) -> bool {
        self.class == other.class
            && self.owner != other.owner
            && (self.exclusive || (other.exclusive && !seeded(Fault::ReadersIgnored)))
            && self.range.overlaps(&other.range)
    }
}

/// The locks: those of one owner and class do not overlap, and those of one kind do not touch each other.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<Lock>);

impl Held {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those in the way of one.
    pub(super) fn in_the_way(&self, of: &Lock) -> impl Iterator<Item = &Lock> {
        self.0.iter().filter(move |held| held.conflicts(of))
    }

    /// Takes a lock that nobody is in the way of, in place of what its owner had there.
    pub(super) fn take(&mut self, mut new: Lock) {
        if seeded(Fault::UpgradeLost) {
            let had = |held: &&Lock| held.owner == new.owner && held.class == new.class;
            new.exclusive &= !self.0.iter().filter(had).any(|held| held.range.overlaps(&new.range));
        }
        self.give_up(&new);
        // It is joined to its neighbours, so that their number stays bounded.
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

    /// Cuts a range out of what its owner has.
    pub(super) fn give_up(&mut self, Lock { owner, class, range, .. }: &Lock) {
        let mut rest = Vec::new();
        self.0.retain(|held| {
            let hit = (held.owner, held.class) == (*owner, *class) && held.range.overlaps(range);
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

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.iter()
    }

    /// True if an owner has anything in a range.
    pub(super) fn has_any(&self, Lock { owner, class, range, .. }: &Lock) -> bool {
        self.0.iter().any(|held| (held.owner, held.class) == (*owner, *class) && held.range.overlaps(range))
    }

    /// True if giving up this range leaves two locks of one.
    pub(super) fn would_split(&self, Lock { owner, class, range, .. }: &Lock) -> bool {
        self.0.iter().any(|held| {
            (held.owner, held.class) == (*owner, *class)
                && held.range.first < range.first
                && held.range.last > range.last
        })
    }

    /// Whose a session's are, each owner once or more.
    pub(super) fn owners(&self, session: u64) -> impl Iterator<Item = Owner> {
        self.0.iter().map(|held| held.owner).filter(move |owner| owner.0 == session)
    }

    /// An owner has none any more.
    pub(super) fn drop_owner(&mut self, owner: Owner) {
        self.0.retain(|held| held.owner != owner);
    }
}
