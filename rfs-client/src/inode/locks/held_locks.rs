//! The locks of an inode that this client may hold. No I/O, no locks, no clock.
//!
//! An entry names the owner and the handle that the lock was requested through. It goes with
//! either, or with the session. Requests of one owner may overtake each other, and a reply says
//! nothing about the others. Each request therefore has a claim until its reply. A refusal only
//! takes back its own claim.

use rfs_proto::LockClass;

/// Owner of locks, and the handle that they were requested through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockKey {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) class: LockClass,
}

/// A request in flight.
#[derive(Debug)]
#[must_use]
pub(crate) struct Claim(LockKey);

#[derive(Debug)]
struct LockEntry {
    key: LockKey,
    /// Number of requests in flight.
    claims: u32,
    /// True if a request was granted, or may have been.
    is_there: bool,
    /// True if a descriptor of the handle has been closed since.
    may_be_closed: bool,
}

/// All entries of an inode, and the locks that are lost.
#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    entries: Vec<LockEntry>,
    /// Handles that held locks which are lost.
    lost_handles: Vec<u64>,
}

impl HeldLocks {
    fn entry(&mut self, key: LockKey) -> &mut LockEntry {
        let at = self.entries.iter().position(|held| held.key == key).unwrap_or_else(|| {
            self.entries.push(LockEntry { key, claims: 0, is_there: false, may_be_closed: false });
            self.entries.len() - 1
        });
        &mut self.entries[at]
    }

    /// Returns true if no lock is held, and none is requested.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns true if a lock is held, or requested.
    pub(crate) fn contains(&self, key: LockKey) -> bool {
        self.entries.iter().any(|held| held.key == key)
    }

    /// Adds the claim of a request.
    pub(crate) fn asks(&mut self, key: LockKey) -> Claim {
        self.entry(key).claims += 1;
        Claim(key)
    }

    /// Ends a claim. With `is_there` a lock is held, or may be.
    pub(crate) fn answered(&mut self, Claim(key): Claim, is_there: bool) {
        // The owner may have given up all its locks meanwhile.
        let held = self.entry(key);
        held.claims = held.claims.saturating_sub(1);
        held.is_there |= is_there;
        self.entries.retain(|held| held.is_there || held.claims > 0);
    }

    /// Notes a granted lock.
    pub(crate) fn has(&mut self, key: LockKey) {
        self.entry(key).is_there = true;
    }

    /// Notes that a descriptor of a handle is being closed, perhaps its last one.
    pub(crate) fn may_close(&mut self, handle: u64) {
        let its = self.entries.iter_mut().filter(|held| held.key.handle == handle);
        its.for_each(|held| held.may_be_closed = true);
    }

    /// Returns true if a lock may be held through a handle that is closed without this client's
    /// knowledge.
    pub(crate) fn may_be_closed(&self) -> bool {
        self.entries.iter().any(|held| held.may_be_closed)
    }

    /// Prepares an unlock of all locks of an owner. Locks granted in the meantime stay.
    pub(crate) fn gives_up(&mut self, owner: u64, class: LockClass) -> Vec<Claim> {
        let its = self.entries.iter_mut().filter(|held| (held.key.owner, held.key.class) == (owner, class));
        its.map(|held| {
            held.claims += 1;
            held.is_there = false;
            Claim(held.key)
        })
        .collect()
    }

    /// Removes and returns the entries that `hit` selects.
    pub(crate) fn take(&mut self, hit: impl Fn(&LockKey) -> bool) -> Vec<LockKey> {
        self.entries.extract_if(.., |held| hit(&held.key)).map(|held| held.key).collect()
    }

    /// Marks the handles that hold locks: the locks are lost. Returns the number of newly marked
    /// handles.
    pub(crate) fn lose_all(&mut self) -> usize {
        let before = self.lost_handles.len();
        for LockKey { handle, .. } in self.take(|_| true) {
            if !self.lost_handles.contains(&handle) {
                self.lost_handles.push(handle);
            }
        }
        self.lost_handles.len() - before
    }

    /// Returns true if any handle is marked.
    pub(crate) fn has_lost_any(&self) -> bool {
        !self.lost_handles.is_empty()
    }

    /// Returns true if a handle is marked.
    pub(crate) fn has_lost(&self, handle: u64) -> bool {
        self.lost_handles.contains(&handle)
    }

    /// Removes the mark of a handle.
    pub(crate) fn forget_lost(&mut self, handle: u64) {
        self.lost_handles.retain(|lost| *lost != handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(handle: u64) -> LockKey {
        LockKey { handle, owner: 7, class: LockClass::Record }
    }

    fn all(held: &HeldLocks) -> Vec<u64> {
        held.entries.iter().map(|held| held.key.handle).collect()
    }

    #[test]
    fn a_lock_may_be_closed_from_the_first_close_of_its_handle_on() {
        let mut held = HeldLocks::default();
        held.has(key(1));
        held.may_close(2);
        assert!(!held.may_be_closed());
        held.may_close(1);
        assert!(held.may_be_closed());
        held.take(|held| held.handle == 1);
        held.has(key(1));
        assert!(!held.may_be_closed());
    }

    #[test]
    fn a_refused_request_leaves_no_entry() {
        let mut held = HeldLocks::default();
        let claim = held.asks(key(1));
        // The server may have granted the lock when the session was lost.
        assert_eq!(all(&held), [1]);
        held.answered(claim, false);
        assert_eq!(all(&held), [0; 0]);
        let claim = held.asks(key(1));
        held.answered(claim, true);
        let claim = held.asks(key(1));
        held.answered(claim, false);
        assert_eq!(all(&held), [1], "the one of before is still there");
    }

    #[test]
    fn a_refused_request_keeps_the_locks_of_other_requests_of_its_owner() {
        for granted_first in [false, true] {
            let mut held = HeldLocks::default();
            let (refused, granted) = (held.asks(key(1)), held.asks(key(1)));
            let mut answers = [(refused, false), (granted, true)];
            if granted_first {
                answers.reverse();
            }
            answers.into_iter().for_each(|(claim, is_there)| held.answered(claim, is_there));
            assert_eq!(all(&held), [1]);
        }
    }

    #[test]
    fn a_lock_granted_during_an_unlock_stays() {
        let mut held = HeldLocks::default();
        held.has(key(1));
        held.has(LockKey { class: LockClass::Flock, ..key(2) });
        let asked = held.asks(key(3));
        let gives_up = held.gives_up(7, LockClass::Record);
        assert_eq!(all(&held), [1, 2, 3]);
        held.answered(asked, true);
        gives_up.into_iter().for_each(|claim| held.answered(claim, false));
        assert_eq!(all(&held), [2, 3]);
        // After a failed unlock the locks may still be held.
        held.gives_up(7, LockClass::Record).into_iter().for_each(|claim| held.answered(claim, true));
        assert_eq!(all(&held), [2, 3]);
    }

    #[test]
    fn a_lock_granted_after_its_entry_was_taken_is_there() {
        let mut held = HeldLocks::default();
        held.has(key(1));
        let asked = held.asks(key(1));
        assert_eq!(held.take(|held| held.handle == 1), [key(1)]);
        assert_eq!(all(&held), [0; 0]);
        held.answered(asked, true);
        assert_eq!(all(&held), [1]);
        let (one, two) = (held.asks(key(2)), held.asks(key(2)));
        assert_eq!(held.take(|held| held.handle == 2).len(), 1);
        [one, two].into_iter().for_each(|claim| held.answered(claim, false));
        assert_eq!(all(&held), [1]);
    }
}
