//! The account of a pool: which store has which chunk, and the use of each chunk.
//!
//! A chunk is free or has one use `U`, so it is in exactly one state. Each store also has room for
//! chunks that it has not prepared. The account plans which stores prepare chunks, and takes free
//! chunks from the stores in turn.
//!
//! # Concurrency
//! No I/O, no locks, no clock. The owner of the pool has a lock around it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ChunkId, StoreId},
    round_robin::{level, turns},
};

/// Most chunks that are planned at once: a store that claims more memory than exists costs no more.
const MAX_PLAN: u64 = 1 << 22;

/// Chunks of a pool and their uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account<U> {
    stores: BTreeMap<StoreId, Shelf<U>>,
    /// The store that got the last turn.
    last: Option<StoreId>,
}

/// Chunks of one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Shelf<U> {
    /// Most chunks that the store lends.
    capacity: u64,
    /// Chunks that the store prepares, or discards, at the moment.
    changing: u64,
    /// The use of each chunk; `None` if it is free.
    chunks: BTreeMap<u32, Option<U>>,
    /// The chunks without a use.
    free: BTreeSet<u32>,
}

impl<U> Shelf<U> {
    fn room(&self) -> u64 {
        self.capacity.saturating_sub((self.chunks.len() as u64).saturating_add(self.changing))
    }
}

/// The stores cannot prepare as many chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} chunks are wanted, and the stores have room for {room}")]
pub struct Shortage {
    /// Number of chunks that were asked for.
    pub wanted: u64,
    /// Number of chunks that the stores could prepare.
    pub room: u64,
}

impl<U> Default for Account<U> {
    fn default() -> Account<U> {
        Account { stores: BTreeMap::new(), last: None }
    }
}

impl<U> Account<U> {
    /// Adds a store with room for `capacity` chunks, or changes its capacity.
    pub fn add_store(&mut self, store: StoreId, capacity: u64) {
        let new = || Shelf { capacity, changing: 0, chunks: BTreeMap::new(), free: BTreeSet::new() };
        self.stores.entry(store).or_insert_with(new).capacity = capacity;
    }

    /// Removes a store. Returns its chunks with their uses.
    pub fn remove_store(&mut self, store: StoreId) -> Vec<(ChunkId, Option<U>)> {
        let chunks = self.stores.remove(&store).map(|shelf| shelf.chunks).unwrap_or_default();
        chunks.into_iter().map(|(number, used)| (ChunkId { store, number }, used)).collect()
    }

    /// Returns the number of chunks that a store prepares or discards at the moment.
    pub fn changing(&self, store: StoreId) -> u64 {
        self.stores.get(&store).map_or(0, |shelf| shelf.changing)
    }

    /// Returns true if the free chunks are those without a use: for an account that was read from a
    /// file.
    pub fn is_consistent(&self) -> bool {
        let is_free = |(number, used): (&u32, &Option<U>)| used.is_none().then_some(*number);
        self.stores
            .values()
            .all(|shelf| shelf.chunks.iter().filter_map(is_free).eq(shelf.free.iter().copied()))
    }

    /// Returns the number of chunks that the stores could prepare in addition.
    pub fn room(&self) -> u64 {
        self.stores.values().map(Shelf::room).fold(0, u64::saturating_add)
    }

    /// Returns the number of chunks without a use.
    pub fn free(&self) -> u64 {
        self.stores.values().map(|shelf| shelf.free.len() as u64).sum()
    }

    /// Returns all chunks with their uses.
    pub fn chunks(&self) -> impl Iterator<Item = (ChunkId, Option<&U>)> {
        self.stores.iter().flat_map(|(store, shelf)| {
            let id = |number: &u32| ChunkId { store: *store, number: *number };
            shelf.chunks.iter().map(move |(number, used)| (id(number), used.as_ref()))
        })
    }

    /// Returns the capacity, prepared chunks and free chunks of each store.
    pub fn stores(&self) -> impl Iterator<Item = (StoreId, u64, u64, u64)> {
        self.stores.iter().map(|(store, shelf)| {
            (*store, shelf.capacity, shelf.chunks.len() as u64, shelf.free.len() as u64)
        })
    }

    /// Plans the preparation of `wanted` chunks beside all free chunks. Returns the number of
    /// chunks of each store, so that the stores have equal parts of both together. The room is
    /// taken until [`prepared`](Self::prepared) or [`unprepared`](Self::unprepared).
    ///
    /// # Errors
    /// [`Shortage`] without an effect, also for more than 4 million chunks.
    pub fn plan(&mut self, wanted: u64) -> Result<BTreeMap<StoreId, u32>, Shortage> {
        let room = self.room().min(MAX_PLAN);
        if room < wanted {
            return Err(Shortage { wanted, room });
        }
        let stores = self.stores.iter().map(|(store, shelf)| (*store, shelf.room(), shelf.free.len() as u64));
        let stores: Vec<_> = stores.collect();
        let mut plan = BTreeMap::new();
        for store in level(&stores, self.last, wanted) {
            *plan.entry(store).or_insert(0_u32) += 1;
            self.last = Some(store);
        }
        for (store, count) in &plan {
            if let Some(shelf) = self.stores.get_mut(store) {
                shelf.changing += u64::from(*count);
            }
        }
        Ok(plan)
    }

    /// Enters chunks that a store has prepared as planned. They are free.
    pub fn prepared(&mut self, store: StoreId, numbers: &[u32]) {
        if let Some(shelf) = self.stores.get_mut(&store) {
            shelf.changing = shelf.changing.saturating_sub(numbers.len() as u64);
        }
        self.enter(store, numbers);
    }

    /// Enters chunks that a store has in addition. They are free.
    pub fn enter(&mut self, store: StoreId, numbers: &[u32]) {
        let Some(shelf) = self.stores.get_mut(&store) else { return };
        for number in numbers {
            if !shelf.chunks.contains_key(number) {
                shelf.chunks.insert(*number, None);
                shelf.free.insert(*number);
            }
        }
    }

    /// Gives room back: a store could not prepare chunks, or has discarded them.
    pub fn unprepared(&mut self, store: StoreId, count: u32) {
        if let Some(shelf) = self.stores.get_mut(&store) {
            shelf.changing = shelf.changing.saturating_sub(u64::from(count));
        }
    }

    /// Removes up to `count` free chunks, which the stores then discard. Their room is taken until
    /// [`unprepared`](Self::unprepared).
    pub fn withdraw(&mut self, count: u64) -> Vec<ChunkId> {
        let chunks = self.choose(count);
        for chunk in &chunks {
            let Some(shelf) = self.stores.get_mut(&chunk.store) else { continue };
            shelf.free.remove(&chunk.number);
            shelf.chunks.remove(&chunk.number);
            shelf.changing += 1;
        }
        chunks
    }

    /// Uses up to `count` free chunks, of all stores in turn.
    pub fn take(&mut self, count: u64, used: impl Fn() -> U) -> Vec<ChunkId> {
        let chunks = self.choose(count);
        chunks.iter().for_each(|chunk| self.set_use(*chunk, used()));
        chunks
    }

    /// Chooses free chunks, and moves the turn on.
    fn choose(&mut self, count: u64) -> Vec<ChunkId> {
        let free: Vec<_> =
            self.stores.iter().map(|(store, shelf)| (*store, shelf.free.len() as u64)).collect();
        let order = turns(&free, self.last, count);
        self.last = order.last().copied().or(self.last);
        let mut next: BTreeMap<StoreId, _> = BTreeMap::new();
        let mut chunk_of = |store: &StoreId| {
            let shelf = self.stores.get(store)?;
            let number = next.entry(*store).or_insert_with(|| shelf.free.iter()).next()?;
            Some(ChunkId { store: *store, number: *number })
        };
        order.iter().filter_map(&mut chunk_of).collect()
    }

    /// Returns the use of a chunk; `None` if it is free or unknown.
    pub fn use_of(&self, chunk: ChunkId) -> Option<&U> {
        self.stores.get(&chunk.store)?.chunks.get(&chunk.number)?.as_ref()
    }

    /// Returns true if the pool has the chunk.
    pub fn contains(&self, chunk: ChunkId) -> bool {
        self.stores.get(&chunk.store).is_some_and(|shelf| shelf.chunks.contains_key(&chunk.number))
    }

    /// Changes the use of a chunk. Has no effect on a chunk that the pool does not have.
    pub fn set_use(&mut self, chunk: ChunkId, used: U) {
        let Some(shelf) = self.stores.get_mut(&chunk.store) else { return };
        if let Some(entry) = shelf.chunks.get_mut(&chunk.number) {
            *entry = Some(used);
            shelf.free.remove(&chunk.number);
        }
    }

    /// Makes a chunk free. Has no effect on a chunk that the pool does not have.
    pub fn set_free(&mut self, chunk: ChunkId) {
        let Some(shelf) = self.stores.get_mut(&chunk.store) else { return };
        if let Some(entry) = shelf.chunks.get_mut(&chunk.number) {
            *entry = None;
            shelf.free.insert(chunk.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Prepare(u64),
        Fail(u64),
        Take(u64),
        Free(usize),
        Withdraw(u64),
        Lose(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..9_u64).prop_map(Step::Prepare),
            1 => (0..9_u64).prop_map(Step::Fail),
            3 => (0..9_u64).prop_map(Step::Take),
            3 => (0..30_usize).prop_map(Step::Free),
            1 => (0..5_u64).prop_map(Step::Withdraw),
            1 => (0..3_u16).prop_map(Step::Lose),
        ]
    }

    proptest! {
        #[test]
        fn each_chunk_is_counted_once(steps in proptest::collection::vec(step(), 0..80)) {
            let mut account = Account::<u8>::default();
            (0..3).for_each(|store| account.add_store(StoreId(store), 6));
            let (mut next, mut used) = (0, Vec::new());
            for step in steps {
                match step {
                    Step::Prepare(count) | Step::Fail(count) => {
                        let room = account.room();
                        let Ok(plan) = account.plan(count) else {
                            prop_assert!(room < count);
                            continue;
                        };
                        prop_assert_eq!(account.room(), room - count);
                        for (store, count) in plan {
                            if matches!(step, Step::Fail(_)) {
                                account.unprepared(store, count);
                            } else {
                                account.prepared(store, &(next..next + count).collect::<Vec<_>>());
                                next += count;
                            }
                        }
                    }
                    Step::Take(count) => {
                        let free = account.free();
                        let chunks = account.take(count, || 7);
                        prop_assert_eq!(chunks.len() as u64, count.min(free));
                        prop_assert!(chunks.iter().all(|chunk| !used.contains(chunk)));
                        used.extend(chunks);
                    }
                    Step::Free(at) if at < used.len() => account.set_free(used.swap_remove(at)),
                    Step::Free(_) => {}
                    Step::Withdraw(count) => for chunk in account.withdraw(count) {
                        prop_assert!(!used.contains(&chunk) && !account.contains(chunk));
                        account.unprepared(chunk.store, 1);
                    },
                    Step::Lose(store) => {
                        account.remove_store(StoreId(store));
                        used.retain(|chunk: &ChunkId| chunk.store.0 != store);
                        account.add_store(StoreId(store), 6);
                    }
                }
                let all = account.chunks().count() as u64;
                prop_assert_eq!(all, account.free() + used.len() as u64);
                prop_assert_eq!(account.room() + all, 18);
                prop_assert!(account.is_consistent());
                prop_assert!(used.iter().all(|chunk| account.use_of(*chunk) == Some(&7)));
            }
        }
    }
}
