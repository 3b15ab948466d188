//! Which session has which chunk.
//!
//! A chunk is free, lent to a session, or retired: returned, and not wiped yet.
//! Invariant: every chunk is in exactly one of the three states.
//!
//! # Concurrency
//! Plain values. The service has a lock around them.

use std::collections::{BTreeMap, BTreeSet};

/// Chunks of a lender.
#[derive(Debug)]
pub(crate) struct Allocator {
    capacity: u32,
    free: BTreeSet<u32>,
    lent: BTreeMap<u64, BTreeSet<u32>>,
}

impl Allocator {
    /// Makes an allocator of `capacity` free chunks.
    pub(crate) fn new(capacity: u32) -> Allocator {
        Allocator { capacity, free: (0..capacity).collect(), lent: BTreeMap::new() }
    }

    /// Returns the number of all chunks.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of free chunks.
    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns the number of chunks of each session that has any.
    pub(crate) fn borrowers(&self) -> Vec<(u64, u32)> {
        self.lent.iter().map(|(session, chunks)| (*session, chunks.len() as u32)).collect()
    }

    /// Lends the lowest free chunk to a session.
    pub(crate) fn lend(&mut self, session: u64) -> Option<u32> {
        let chunk = self.free.pop_first()?;
        self.lent.entry(session).or_default().insert(chunk);
        Some(chunk)
    }

    /// Retires a chunk of a session. Returns false if the session does not have it.
    pub(crate) fn retire(&mut self, session: u64, chunk: u32) -> bool {
        let Some(chunks) = self.lent.get_mut(&session) else { return false };
        let had = chunks.remove(&chunk);
        if chunks.is_empty() {
            self.lent.remove(&session);
        }
        had
    }

    /// Retires all chunks of a session that has ended.
    pub(crate) fn retire_all(&mut self, session: u64) -> BTreeSet<u32> {
        self.lent.remove(&session).unwrap_or_default()
    }

    /// Makes a retired chunk free.
    pub(crate) fn reclaim(&mut self, chunk: u32) {
        self.free.insert(chunk);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Lend(u64),
        Return(u64, u32),
        End(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3_u64).prop_map(Step::Lend),
            2 => (0..3_u64, 0..9_u32).prop_map(|(session, chunk)| Step::Return(session, chunk)),
            1 => (0..3_u64).prop_map(Step::End),
        ]
    }

    proptest! {
        #[test]
        fn no_chunk_has_two_owners(steps in proptest::collection::vec(step(), 0..100)) {
            let mut allocator = Allocator::new(8);
            let mut owners: HashMap<u32, u64> = HashMap::new();
            for step in steps {
                match step {
                    Step::Lend(session) => match allocator.lend(session) {
                        Some(chunk) => prop_assert_eq!(owners.insert(chunk, session), None),
                        None => prop_assert_eq!(owners.len(), 8),
                    },
                    Step::Return(session, chunk) => {
                        let owned = owners.get(&chunk) == Some(&session);
                        prop_assert_eq!(allocator.retire(session, chunk), owned);
                        if owned {
                            owners.remove(&chunk);
                            allocator.reclaim(chunk);
                        }
                    }
                    Step::End(session) => for chunk in allocator.retire_all(session) {
                        prop_assert_eq!(owners.remove(&chunk), Some(session));
                        allocator.reclaim(chunk);
                    },
                }
                prop_assert_eq!(allocator.free() as usize + owners.len(), 8);
                let lent: u32 = allocator.borrowers().iter().map(|(_, chunks)| chunks).sum();
                prop_assert_eq!(lent as usize, owners.len());
            }
        }
    }
}
