//! Who has locked what: record locks (fcntl, open file descriptions) and whole-file locks (flock) of all sessions. Pure.
//!
//! Nobody waits in here. Whoever wants to wait asks again; that he does is noted, so that a circle of record locks is
//! found before it closes.
//!
//! Threading: none; a lock of its own protects it.

use std::collections::HashMap;

use rfs_proto::{Errno, HeldLock, LockClass, LockKind, LockRange};

/// Most locks that a session has at a time, give or take the pieces of the last one; a client takes no more memory with them.
const MAX_LOCKS: usize = 1 << 14;

/// Whose lock it is: a session, and what its client calls the owner.
pub type Owner = (u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    owner: Owner,
    class: LockClass,
    exclusive: bool,
    range: LockRange,
    pid: u32,
}

impl Held {
    fn conflicts(&self, other: &Held) -> bool {
        self.class == other.class
            && self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.range.overlaps(&other.range)
    }
}

/// The locks.
#[derive(Debug, Default)]
pub struct Locks {
    by_ino: HashMap<u64, Vec<Held>>,
    /// How many each session has.
    counts: HashMap<u64, usize>,
    /// What each owner of record locks waits for.
    waiting: HashMap<Owner, (u64, Held)>,
}

/// A lock that is asked for, or given up.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Who.
    pub owner: Owner,
    /// In which of the two worlds.
    pub class: LockClass,
    /// Where.
    pub range: LockRange,
    /// For whoever asks who is in the way.
    pub pid: u32,
}

impl Locks {
    /// Locks or unlocks a range, replacing what the owner had there. EAGAIN if somebody is in the way; EDEADLK if it would
    /// `wait` for somebody who waits for it; ENOLCK if the session has too many.
    pub fn set(&mut self, ino: u64, wish: Wish, kind: LockKind, wait: bool) -> Result<(), Errno> {
        let Wish { owner, class, range, pid } = wish;
        let new = Held { owner, class, exclusive: kind == LockKind::Exclusive, range, pid };
        self.waiting.remove(&owner);
        if self.count(owner.0) >= MAX_LOCKS && (kind != LockKind::Unlock || self.would_split(ino, &new)) {
            return Err(Errno::ENOLCK);
        }
        let before = self.len(ino);
        let outcome = self.try_set(ino, new, kind, wait);
        // Whatever changed is the owner's.
        self.recount(owner.0, before, self.len(ino));
        outcome
    }

    fn try_set(&mut self, ino: u64, new: Held, kind: LockKind, wait: bool) -> Result<(), Errno> {
        let Held { owner, class, range, .. } = new;
        if kind != LockKind::Unlock && self.first_conflict(ino, &new).is_some() {
            if class == LockClass::Flock {
                // Changing a lock is giving it up and asking for another one, says flock(2).
                self.unlock(ino, owner, class, range);
            }
            if wait && class == LockClass::Record {
                if self.leads_to(ino, &new, owner) {
                    return Err(Errno::EDEADLK);
                }
                // Beyond a number that nobody reaches in earnest, circles are not looked for.
                if self.waiting.len() < MAX_LOCKS {
                    self.waiting.insert(owner, (ino, new));
                }
            }
            return Err(Errno::EAGAIN);
        }
        self.unlock(ino, owner, class, range);
        if kind != LockKind::Unlock {
            self.insert(ino, new);
        }
        Ok(())
    }

    /// The owner waits no more.
    pub fn stop_waiting(&mut self, owner: Owner) {
        self.waiting.remove(&owner);
    }

    /// A lock that is in the way of one, if any.
    pub fn conflict(&self, ino: u64, wish: Wish, exclusive: bool) -> Option<(u64, HeldLock)> {
        let Wish { owner, class, range, pid } = wish;
        let found = self.first_conflict(ino, &Held { owner, class, exclusive, range, pid })?;
        Some((found.owner.0, HeldLock { exclusive: found.exclusive, range: found.range, pid: found.pid }))
    }

    /// A session has the inode open no more.
    pub fn closed(&mut self, session: u64, ino: u64) {
        let before = self.len(ino);
        self.retain(ino, |held| held.owner.0 != session);
        self.recount(session, before, self.len(ino));
        self.waiting.retain(|owner, (waits_for, _)| owner.0 != session || *waits_for != ino);
    }

    fn len(&self, ino: u64) -> usize {
        self.by_ino.get(&ino).map_or(0, Vec::len)
    }

    fn count(&self, session: u64) -> usize {
        self.counts.get(&session).copied().unwrap_or(0)
    }

    fn recount(&mut self, session: u64, before: usize, after: usize) {
        let count = (self.count(session) + after).saturating_sub(before);
        if count == 0 {
            self.counts.remove(&session);
        } else {
            self.counts.insert(session, count);
        }
    }

    /// True if giving up this range leaves two locks of one.
    fn would_split(&self, ino: u64, new: &Held) -> bool {
        self.by_ino.get(&ino).into_iter().flatten().any(|held| {
            (held.owner, held.class) == (new.owner, new.class)
                && held.range.first < new.range.first
                && held.range.last > new.range.last
        })
    }

    fn first_conflict(&self, ino: u64, new: &Held) -> Option<Held> {
        self.by_ino.get(&ino)?.iter().find(|held| held.conflicts(new)).copied()
    }

    /// True if one of those who are in the way of `new` waits, over others or not, for `owner`.
    fn leads_to(&self, ino: u64, new: &Held, owner: Owner) -> bool {
        let mut seen: Vec<Owner> = Vec::new();
        let mut open = vec![(ino, *new)];
        while let Some((ino, wanted)) = open.pop() {
            for held in self.by_ino.get(&ino).into_iter().flatten().filter(|held| held.conflicts(&wanted)) {
                if held.owner == owner {
                    return true;
                }
                if !seen.contains(&held.owner) {
                    seen.push(held.owner);
                    open.extend(self.waiting.get(&held.owner));
                }
            }
        }
        false
    }

    /// Cuts a range out of what the owner has.
    fn unlock(&mut self, ino: u64, owner: Owner, class: LockClass, range: LockRange) {
        let Some(all) = self.by_ino.get_mut(&ino) else { return };
        let mut rest = Vec::new();
        all.retain(|held| {
            let hit = held.owner == owner && held.class == class && held.range.overlaps(&range);
            if hit {
                let LockRange { first, last } = held.range;
                if first < range.first {
                    rest.push(Held { range: LockRange { first, last: range.first - 1 }, ..*held });
                }
                if last > range.last {
                    rest.push(Held { range: LockRange { first: range.last + 1, last }, ..*held });
                }
            }
            !hit
        });
        all.extend(rest);
        if all.is_empty() {
            self.by_ino.remove(&ino);
        }
    }

    /// Adds a lock where its owner has none, and joins it to its neighbours, so that their number stays bounded.
    fn insert(&mut self, ino: u64, mut new: Held) {
        let all = self.by_ino.entry(ino).or_default();
        all.retain(|held| {
            let same = (held.owner, held.class, held.exclusive) == (new.owner, new.class, new.exclusive);
            let before = held.range.last.checked_add(1) == Some(new.range.first);
            let behind = new.range.last.checked_add(1) == Some(held.range.first);
            if same && (before || behind) {
                new.range.first = new.range.first.min(held.range.first);
                new.range.last = new.range.last.max(held.range.last);
            }
            !(same && (before || behind))
        });
        all.push(new);
    }

    fn retain(&mut self, ino: u64, keep: impl Fn(&Held) -> bool) {
        if let Some(all) = self.by_ino.get_mut(&ino) {
            all.retain(|held| keep(held));
            if all.is_empty() {
                self.by_ino.remove(&ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Owner = (1, 10);
    const B: Owner = (1, 20);
    const C: Owner = (2, 10);

    fn wish(owner: Owner, first: u64, last: u64) -> Wish {
        Wish { owner, class: LockClass::Record, range: LockRange { first, last }, pid: 7 }
    }

    fn flock(owner: Owner) -> Wish {
        Wish { class: LockClass::Flock, ..wish(owner, 0, u64::MAX) }
    }

    use LockKind::{Exclusive, Shared, Unlock};

    #[test]
    fn shared_and_exclusive() {
        let mut locks = Locks::default();
        assert_eq!(locks.set(5, wish(A, 0, 9), Shared, false), Ok(()));
        assert_eq!(locks.set(5, wish(C, 5, 14), Shared, false), Ok(()));
        assert_eq!(locks.set(5, wish(C, 5, 14), Exclusive, false), Err(Errno::EAGAIN));
        assert_eq!(locks.set(5, wish(C, 10, 14), Exclusive, false), Ok(()));
        assert_eq!(locks.set(6, wish(C, 0, 9), Exclusive, false), Ok(()), "another file");
        let in_the_way = HeldLock { exclusive: false, range: LockRange { first: 0, last: 9 }, pid: 7 };
        assert_eq!(locks.conflict(5, wish(B, 0, 3), true), Some((1, in_the_way)));
        assert_eq!(locks.conflict(5, wish(B, 0, 3), false), None);
        assert_eq!(locks.conflict(5, wish(A, 0, 3), true), None);
        assert_eq!(locks.set(5, wish(A, 0, u64::MAX), Unlock, false), Ok(()));
        assert_eq!(locks.conflict(5, wish(B, 0, 3), true), None);
    }

    #[test]
    fn the_two_classes_do_not_see_each_other() {
        let mut locks = Locks::default();
        assert_eq!(locks.set(5, wish(A, 0, u64::MAX), Exclusive, false), Ok(()));
        assert_eq!(locks.set(5, flock(B), Exclusive, false), Ok(()));
        assert_eq!(locks.set(5, flock(C), Shared, false), Err(Errno::EAGAIN));
        assert_eq!(locks.set(5, flock(B), Shared, false), Ok(()));
        assert_eq!(locks.set(5, flock(C), Shared, false), Ok(()));
        // An upgrade that fails has given up what there was.
        assert_eq!(locks.set(5, flock(C), Exclusive, false), Err(Errno::EAGAIN));
        assert_eq!(locks.set(5, flock(B), Exclusive, false), Ok(()));
    }

    #[test]
    fn sessions_that_close_leave_nothing() {
        let mut locks = Locks::default();
        locks.set(5, wish(A, 0, 9), Exclusive, false).unwrap();
        locks.set(5, flock(A), Exclusive, false).unwrap();
        assert_eq!(locks.set(5, wish(C, 0, 9), Exclusive, true), Err(Errno::EAGAIN));
        locks.closed(1, 5);
        assert_eq!(locks.set(5, wish(C, 0, 9), Exclusive, true), Ok(()));
        assert_eq!(locks.set(5, wish(A, 0, 9), Exclusive, true), Err(Errno::EAGAIN));
        locks.closed(1, 5);
        locks.closed(2, 5);
        assert!(locks.by_ino.is_empty() && locks.waiting.is_empty() && locks.counts.is_empty());
    }

    #[test]
    fn nobody_has_locks_without_number() {
        let mut locks = Locks::default();
        // Neither side by side nor in pieces; other files and owners count, too.
        locks.set(6, wish(B, 0, u64::MAX), Exclusive, false).unwrap();
        for at in 1..MAX_LOCKS as u64 {
            locks.set(6, wish(B, 2 * at, 2 * at), Unlock, false).unwrap();
        }
        assert_eq!(locks.count(1), MAX_LOCKS);
        assert_eq!(locks.set(6, wish(B, 1 << 40, 1 << 40), Unlock, false), Err(Errno::ENOLCK));
        assert_eq!(locks.set(5, wish(A, 0, 0), Shared, false), Err(Errno::ENOLCK));
        assert_eq!(locks.set(5, wish(C, 0, 0), Shared, false), Ok(()), "that is another session");
        locks.set(6, wish(B, 3, 3), Unlock, false).unwrap();
        assert_eq!(locks.set(5, wish(A, 0, 0), Shared, false), Ok(()));
        locks.closed(1, 6);
        locks.closed(1, 5);
        locks.closed(2, 5);
        assert!(locks.by_ino.is_empty() && locks.counts.is_empty());
    }

    #[test]
    fn circles_are_found_before_they_close() {
        let mut locks = Locks::default();
        for (owner, at) in [(A, 0), (B, 1), (C, 2)] {
            locks.set(5, wish(owner, at, at), Exclusive, true).unwrap();
        }
        assert_eq!(locks.set(5, wish(A, 1, 1), Exclusive, true), Err(Errno::EAGAIN));
        assert_eq!(locks.set(5, wish(B, 2, 2), Shared, true), Err(Errno::EAGAIN));
        assert_eq!(
            locks.set(5, wish(C, 0, 0), Shared, false),
            Err(Errno::EAGAIN),
            "who does not wait closes no circle"
        );
        assert_eq!(locks.set(5, wish(C, 0, 0), Shared, true), Err(Errno::EDEADLK));
        locks.stop_waiting(A);
        assert_eq!(locks.set(5, wish(C, 0, 0), Shared, true), Err(Errno::EAGAIN));
        assert_eq!(locks.set(5, wish(A, 2, 2), Exclusive, true), Err(Errno::EDEADLK));
    }

    proptest! {
        /// Against a table of bytes: for each byte and owner, the lock that it has there.
        #[test]
        fn agrees_with_a_table(steps in proptest::collection::vec((0u64..3, 0u64..12, 0u64..12, 0u8..3), 1..60)) {
            let mut locks = Locks::default();
            let mut table = [[None; 3]; 24];
            for (owner, first, len, kind) in steps {
                let range = first as usize..=(first + len) as usize;
                let kind = [Shared, Exclusive, Unlock][usize::from(kind)];
                let free = kind == Unlock || range.clone().all(|at| table[at].iter().enumerate().all(|(other, held)|
                    other as u64 == owner || held.is_none_or(|held| held == Shared && kind == Shared)));
                let expected = if free { Ok(()) } else { Err(Errno::EAGAIN) };
                prop_assert_eq!(locks.set(5, wish((owner, 0), first, first + len), kind, false), expected);
                if free {
                    range.for_each(|at| table[at][owner as usize] = (kind != Unlock).then_some(kind));
                }
                for session in 0..3u64 {
                    let kind = |at: usize| table[at][session as usize];
                    let begins = |at: usize| kind(at).is_some() && (at == 0 || kind(at) != kind(at - 1));
                    prop_assert_eq!(locks.count(session), (0..24).filter(|&at| begins(at)).count());
                }
                for (at, owners) in table.iter().enumerate() {
                    let seen = locks.conflict(5, wish((9, 9), at as u64, at as u64), true).is_some();
                    prop_assert_eq!(seen, owners.iter().any(Option::is_some), "byte {}", at);
                }
            }
        }
    }
}
