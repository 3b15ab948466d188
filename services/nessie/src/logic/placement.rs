//! Where keys are: the slots of a key, by rank, and its filter.
//!
//! [`Placement`] maps a key to its [`Place`]. [`Hashed`] is the placement of real nodes: N hash
//! functions over the slots of all nodes. Slots of one key are distinct, and on distinct nodes as
//! far as there are nodes. So the loss of a node takes as few slots of a key as possible.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    verb::{MAX_WAYS, PerSlot},
    word::Fields,
};

/// An index slot: a node, and a number in the index of that node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) node: u16,
    pub(crate) number: u32,
}

/// The slots of a key, the highest rank first, and its filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) slots: PerSlot<Slot>,
    pub(crate) filter: u16,
}

/// Maps keys to places.
pub(crate) trait Placement {
    fn place(&self, key: &[u8]) -> Place;
    fn fields(&self) -> Fields;
}

/// Seed of the hash that gives the filter; slots have the seeds from 1 on.
const FILTER_SEED: u64 = 0;

/// N hash functions over the slots of all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hashed {
    /// Nodes that have an index, by position.
    nodes: Box<[u16]>,
    /// Slots of each node.
    slots: u32,
    ways: usize,
    fields: Fields,
}

impl Hashed {
    /// Creates the placement of keys over `slots` slots of each of these nodes. A key has `ways`
    /// slots.
    ///
    /// # Panics
    /// If there are fewer slots than `ways`, or `ways` is not in 2 to 4.
    pub(crate) fn new(nodes: &[u16], slots: u32, ways: usize, fields: Fields) -> Hashed {
        assert!((2..=MAX_WAYS).contains(&ways), "{ways} ways");
        assert!(nodes.len() as u64 * u64::from(slots) >= ways as u64, "too few slots");
        Hashed { nodes: nodes.into(), slots, ways, fields }
    }
}

impl Placement for Hashed {
    fn place(&self, key: &[u8]) -> Place {
        let total = self.nodes.len() as u64 * u64::from(self.slots);
        let mut slots = PerSlot::new();
        let mut seed = FILTER_SEED;
        while slots.len() < self.ways {
            seed += 1;
            // The high half of the product spreads evenly for any number of slots.
            let number = ((u128::from(xxh3_64_with_seed(key, seed)) * u128::from(total)) >> 64) as u64;
            let node = self.nodes[(number / u64::from(self.slots)) as usize];
            let slot = Slot { node, number: (number % u64::from(self.slots)) as u32 };
            let is_new_node = !slots.iter().any(|taken: &Slot| taken.node == slot.node);
            if is_new_node || slots.len() >= self.nodes.len() && !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        Place { slots, filter: self.fields.filter(xxh3_64_with_seed(key, FILTER_SEED)) }
    }

    fn fields(&self) -> Fields {
        self.fields
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_are_distinct_and_exist(
            key in prop::collection::vec(any::<u8>(), 0..20),
            nodes in 1usize..5,
            slots in 4u32..9,
            ways in 2usize..=4,
        ) {
            let nodes: Vec<u16> = (0..nodes as u16).map(|node| node * 3).collect();
            let hashed = Hashed::new(&nodes, slots, ways, Fields::new(16, 15));
            let place = hashed.place(&key);
            prop_assert_eq!(place.slots.len(), ways);
            for (at, slot) in place.slots.iter().enumerate() {
                prop_assert!(nodes.contains(&slot.node) && slot.number < slots);
                prop_assert!(!place.slots[..at].contains(slot));
            }
            let used: HashSet<u16> = place.slots.iter().map(|slot| slot.node).collect();
            prop_assert_eq!(used.len(), ways.min(nodes.len()));
            prop_assert_eq!(&place, &hashed.place(&key));
        }
    }

    #[test]
    fn keys_spread_evenly() {
        let hashed = Hashed::new(&[0, 1, 2], 100, 3, Fields::new(3, 15));
        let mut counts = vec![0u32; 300];
        for key in 0u32..100_000 {
            for slot in hashed.place(&key.to_le_bytes()).slots {
                counts[usize::from(slot.node) * 100 + slot.number as usize] += 1;
            }
        }
        // 1,000 are expected; seven standard deviations are 221.
        assert!(counts.iter().all(|count| (779..1221).contains(count)), "{counts:?}");
    }
}
