//! The stores at which writes of this client may arrive late.
//!
//! # Concurrency
//! Any thread. One atomic answers without the lock whether there are any.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

/// Stands for all stores.
pub(super) const ALL_STORES: u16 = 0;

/// The stores in doubt.
#[derive(Debug, Default)]
pub(super) struct LateWrites {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the last doubt about each store.
    stores: BTreeMap<u16, u64>,
    last: u64,
}

impl LateWrites {
    /// Notes that a write may arrive at a store late.
    pub(super) fn add(&self, store: u16) {
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.stores.insert(store, number);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Returns the stores, each with the number of its last doubt.
    pub(super) fn all(&self) -> Vec<(u16, u64)> {
        self.state.lock().stores.iter().map(|(store, number)| (*store, *number)).collect()
    }

    /// Notes that the server knows of the doubts about a store, up to a number.
    pub(super) fn settled(&self, store: u16, number: u64) {
        let mut state = self.state.lock();
        if state.stores.get(&store).is_some_and(|last| *last <= number) {
            state.stores.remove(&store);
        }
        self.any.store(!state.stores.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a write that fails while the server hears of an earlier one: it would be forgotten.
    #[test]
    fn a_later_doubt_about_a_store_stays() {
        let doubts = LateWrites::default();
        assert!(!doubts.any());
        [3, 5].into_iter().for_each(|store| doubts.add(store));
        let told = doubts.all();
        assert_eq!(told, [(3, 1), (5, 2)]);
        doubts.add(3);
        told.into_iter().for_each(|(store, number)| doubts.settled(store, number));
        assert_eq!((doubts.any(), doubts.all()), (true, vec![(3, 3)]));
        doubts.settled(3, 3);
        doubts.settled(3, 3);
        assert_eq!((doubts.any(), doubts.all()), (false, vec![]));
    }
}
