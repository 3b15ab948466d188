//! A cache of the card that replaces the entry used least recently: queue pair contexts, and
//! memory translations.
//!
//! No I/O, no locks, no clock.

use std::collections::{BTreeMap, HashMap};

/// The keys that a cache of `capacity` entries holds.
#[derive(Clone, Debug)]
pub(super) struct Lru<K> {
    capacity: usize,
    /// The last use of each key.
    used: HashMap<K, u64>,
    by_use: BTreeMap<u64, K>,
    uses: u64,
}

impl<K: Copy + Eq + std::hash::Hash> Lru<K> {
    pub(super) fn new(capacity: u64) -> Lru<K> {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX).max(1);
        Lru { capacity, used: HashMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// Uses a key. Returns true if the cache lacked it, and had to fetch it.
    pub(super) fn misses(&mut self, key: K) -> bool {
        self.uses += 1;
        let before = self.used.insert(key, self.uses);
        if let Some(before) = before {
            self.by_use.remove(&before);
        } else if self.used.len() > self.capacity
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.used.remove(&oldest);
        }
        self.by_use.insert(self.uses, key);
        before.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_is_present_if_fewer_others_were_used_since(
            capacity in 1..8u64,
            keys in prop::collection::vec(0..12u32, 0..200),
        ) {
            let mut cache = Lru::new(capacity);
            for (at, key) in keys.iter().enumerate() {
                let before = &keys[..at];
                let present = before.iter().rposition(|other| other == key).is_some_and(|last| {
                    let mut others: Vec<_> = before[last + 1..].to_vec();
                    others.sort_unstable();
                    others.dedup();
                    (others.len() as u64) < capacity
                });
                prop_assert_eq!(cache.misses(*key), !present);
                prop_assert!(cache.used.len() as u64 <= capacity && cache.by_use.len() == cache.used.len());
            }
        }
    }
}
