//! Inodes without a name, and the sessions that may still use them by number. No I/O, no locks, no
//! clock.
//!
//! [`Orphans`] belongs to a shard. An inode is added when it loses its last name, with the sessions
//! that may know it. No further session learns of an inode without a name. The inode can be freed
//! when the last of these sessions has released it and no session has it open. The caller knows
//! which sessions have it open.
//!
//! An orphan that no session has open is idle. The caller counts the space of idle orphans as free,
//! because the server can take it at any time.
//!
//! # Concurrency
//! None; the shard lock protects the value.

use std::collections::hash_map::Entry;

use super::cache_holders::Sessions;
use crate::metadata::id_map::ByNumber;

#[derive(Debug)]
struct Orphan {
    /// Sessions that may use the inode; never empty.
    holders: Sessions,
    /// Bytes that the inode has in the arena, counted as free while it is idle.
    idle_bytes: Option<u64>,
}

/// Result of removing a session from the holders of an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The inode is no orphan.
    Unknown,
    /// The session was no holder, or others remain.
    Held,
    /// The last holder has gone, and the inode is no orphan any more. The bytes that were counted
    /// for it if it was idle.
    Free(Option<u64>),
}

/// The orphans of a shard.
#[derive(Debug, Default)]
pub struct Orphans(ByNumber<Orphan>);

impl Orphans {
    /// Adds an inode that has just lost its last name. `idle_bytes`: its bytes in the arena, if no
    /// session has it open. Ignores an inode without holders.
    pub fn add(&mut self, ino: u64, holders: Sessions, idle_bytes: Option<u64>) {
        if !holders.is_empty() {
            self.0.insert(ino, Orphan { holders, idle_bytes });
        }
    }

    /// Returns true if a session may still use the inode, which has no name.
    pub fn is_held(&self, ino: u64) -> bool {
        self.0.contains_key(&ino)
    }

    /// Removes a session from the holders of an inode.
    pub fn release(&mut self, ino: u64, session: u64) -> Release {
        let Entry::Occupied(mut entry) = self.0.entry(ino) else { return Release::Unknown };
        entry.get_mut().holders.retain(|holder| *holder != session);
        match entry.get().holders.is_empty() {
            true => Release::Free(entry.remove().idle_bytes),
            false => Release::Held,
        }
    }

    /// Removes a session from the holders of all inodes. Returns those that have no holder any
    /// more, in order.
    pub fn end_session(&mut self, session: u64) -> Vec<u64> {
        let mut free = Vec::new();
        for (&ino, orphan) in &mut self.0 {
            let before = orphan.holders.len();
            orphan.holders.retain(|holder| *holder != session);
            if before > 0 && orphan.holders.is_empty() {
                free.push(ino);
            }
        }
        free.sort_unstable();
        free
    }

    /// Marks an orphan as idle, with the bytes that it has in the arena. Returns false if it is no
    /// orphan, or is idle already.
    pub fn rest(&mut self, ino: u64, bytes: u64) -> bool {
        let Some(orphan) = self.0.get_mut(&ino).filter(|orphan| orphan.idle_bytes.is_none()) else {
            return false;
        };
        orphan.idle_bytes = Some(bytes);
        true
    }

    /// Ends the idle state of an orphan. Returns the bytes that were counted for it, `None` if it
    /// was not idle.
    pub fn wake(&mut self, ino: u64) -> Option<u64> {
        self.0.get_mut(&ino)?.idle_bytes.take()
    }

    /// Forgets an orphan that is freed. Returns the bytes that were counted for it if it was idle.
    pub fn remove(&mut self, ino: u64) -> Option<u64> {
        self.0.remove(&ino)?.idle_bytes
    }

    /// Forgets an orphan that gets a name, and returns the sessions that may use it. It is not
    /// idle.
    pub fn take(&mut self, ino: u64) -> Sessions {
        self.0.remove(&ino).map(|orphan| orphan.holders).unwrap_or_default()
    }

    /// Returns the idle orphans, in order.
    pub fn idle(&self) -> Vec<u64> {
        let idle = self.0.iter().filter(|(_, orphan)| orphan.idle_bytes.is_some());
        let mut idle: Vec<u64> = idle.map(|(&ino, _)| ino).collect();
        idle.sort_unstable();
        idle
    }

    /// Returns the orphans that a session holds, in order.
    pub fn held_by(&self, session: u64) -> Vec<u64> {
        let held = self.0.iter().filter(|(_, orphan)| orphan.holders.contains(&session));
        let mut held: Vec<u64> = held.map(|(&ino, _)| ino).collect();
        held.sort_unstable();
        held
    }

    /// Returns true if there are no orphans.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64, Vec<u64>, Option<u64>),
        Release(u64, u64),
        End(u64),
        Rest(u64, u64),
        Wake(u64),
        Take(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let session = 1..5u64;
        prop_oneof![
            3 => (1..6u64, proptest::collection::btree_set(session.clone(), 0..4), any::<Option<u64>>())
                .prop_map(|(ino, holders, idle)| Step::Add(ino, holders.into_iter().collect(), idle)),
            6 => (1..6u64, session.clone()).prop_map(|(ino, session)| Step::Release(ino, session)),
            1 => session.prop_map(Step::End),
            2 => (1..6u64, 0..100u64).prop_map(|(ino, bytes)| Step::Rest(ino, bytes)),
            2 => (1..6u64).prop_map(Step::Wake),
            1 => (1..6u64).prop_map(Step::Take),
        ]
    }

    proptest! {
        /// An inode is free after each of its holders has let go once or ended, in any order, and
        /// never before.
        #[test]
        fn free_when_every_holder_has_let_go(steps in proptest::collection::vec(step(), 1..80)) {
            let mut orphans = Orphans::default();
            let mut model: BTreeMap<u64, (BTreeSet<u64>, Option<u64>)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Add(ino, holders, idle) => {
                        // Inode numbers are used once.
                        if let std::collections::btree_map::Entry::Vacant(unknown) = model.entry(ino) {
                            orphans.add(ino, holders.iter().copied().collect(), idle);
                            if !holders.is_empty() {
                                unknown.insert((holders.into_iter().collect(), idle));
                            }
                        }
                    }
                    Step::Release(ino, session) => {
                        let expected = model.get_mut(&ino).map_or(Release::Unknown, |(holders, idle)| {
                            holders.remove(&session);
                            if holders.is_empty() { Release::Free(*idle) } else { Release::Held }
                        });
                        prop_assert_eq!(orphans.release(ino, session), expected);
                        if matches!(expected, Release::Free(_)) {
                            model.remove(&ino);
                        }
                    }
                    Step::End(session) => {
                        model.values_mut().for_each(|(holders, _)| holders.retain(|&holder| holder != session));
                        let free: Vec<u64> =
                            model.iter().filter(|(_, (holders, _))| holders.is_empty()).map(|(&ino, _)| ino).collect();
                        prop_assert_eq!(orphans.end_session(session), free.clone());
                        for ino in free {
                            let idle = model.remove(&ino).and_then(|(_, idle)| idle);
                            prop_assert_eq!(orphans.remove(ino), idle);
                        }
                        prop_assert!(orphans.held_by(session).is_empty());
                    }
                    Step::Rest(ino, bytes) => {
                        let rests = model.get_mut(&ino).filter(|(_, idle)| idle.is_none());
                        prop_assert_eq!(orphans.rest(ino, bytes), rests.is_some());
                        if let Some((_, idle)) = rests {
                            *idle = Some(bytes);
                        }
                    }
                    Step::Take(ino) => {
                        let mut taken = orphans.take(ino).to_vec();
                        taken.sort_unstable();
                        let expected = model.remove(&ino).map_or_else(Vec::new, |(holders, _)| holders.into_iter().collect());
                        prop_assert_eq!(taken, expected);
                    }
                    Step::Wake(ino) => {
                        let idle = model.get_mut(&ino).and_then(|(_, idle)| idle.take());
                        prop_assert_eq!(orphans.wake(ino), idle);
                    }
                }
                for ino in 1..6 {
                    prop_assert_eq!(orphans.is_held(ino), model.contains_key(&ino));
                }
                let idle: Vec<u64> = model.iter().filter(|(_, (_, idle))| idle.is_some()).map(|(&ino, _)| ino).collect();
                prop_assert_eq!(orphans.idle(), idle);
                prop_assert_eq!(orphans.is_empty(), model.is_empty());
            }
        }
    }
}
