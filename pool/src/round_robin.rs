//! Distribution of a number of chunks over stores.
//!
//! The stores get turns, from a given store on. So a region has as many stores as possible, and no
//! store has two chunks more than another store that had room. Equal inputs give equal results: a
//! replayed log places chunks as before.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::ids::StoreId;

/// Gives `wanted` turns to stores with room, from the first store after `last` on. `room` is in
/// ascending order of stores. Returns the store of each turn. There are fewer turns if the room is
/// not sufficient.
pub fn turns(room: &[(StoreId, u64)], last: Option<StoreId>, wanted: u64) -> Vec<StoreId> {
    let start = room.partition_point(|(store, _)| last.is_some_and(|last| *store <= last));
    let mut left: Vec<(StoreId, u64)> = room[start..].iter().chain(&room[..start]).copied().collect();
    let mut turns = Vec::new();
    while (turns.len() as u64) < wanted {
        left.retain(|(_, room)| *room > 0);
        if left.is_empty() {
            break;
        }
        for (store, room) in &mut left {
            if (turns.len() as u64) < wanted {
                turns.push(*store);
                *room -= 1;
            }
        }
    }
    turns
}

/// Gives `wanted` turns to stores with room, each to the store with the fewest chunks, the first
/// one after `last` if several have as few. A store is its number, its room, and the chunks that it
/// has already, in ascending order of stores. There are fewer turns if the room is not sufficient.
pub(crate) fn level(stores: &[(StoreId, u64, u64)], last: Option<StoreId>, wanted: u64) -> Vec<StoreId> {
    let start = stores.partition_point(|(store, ..)| last.is_some_and(|last| *store <= last));
    let order: Vec<_> = stores[start..].iter().chain(&stores[..start]).collect();
    let with_room = order.iter().enumerate().filter(|(_, (_, room, _))| *room > 0);
    let mut next: BinaryHeap<_> = with_room.map(|(at, (_, _, has))| Reverse((*has, at))).collect();
    let mut turns = Vec::new();
    while (turns.len() as u64) < wanted
        && let Some(Reverse((count, at))) = next.pop()
    {
        let (store, room, has) = order[at];
        turns.push(*store);
        if count + 1 - has < *room {
            next.push(Reverse((count + 1, at)));
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_turn_goes_on_after_the_last_store() {
        let room = [(StoreId(1), 9), (StoreId(4), 1), (StoreId(7), 9)];
        let stores = |last, wanted| turns(&room, last, wanted).into_iter().map(|s| s.0).collect::<Vec<_>>();
        assert_eq!(stores(None, 5), [1, 4, 7, 1, 7]);
        assert_eq!(stores(Some(StoreId(1)), 4), [4, 7, 1, 7]);
        assert_eq!(stores(Some(StoreId(7)), 2), [1, 4]);
        assert_eq!(stores(Some(StoreId(9)), 100).len(), 19);
    }

    proptest! {
        #[test]
        fn no_store_is_preferred(rooms in proptest::collection::vec(0..6_u64, 1..6), wanted in 0..40_u64) {
            let room: Vec<_> = rooms.iter().enumerate().map(|(i, room)| (StoreId(i as u16), *room)).collect();
            let turns = turns(&room, Some(StoreId(2)), wanted);
            prop_assert_eq!(turns.len() as u64, wanted.min(rooms.iter().sum()));
            let count = |store: StoreId| turns.iter().filter(|turn| **turn == store).count() as u64;
            for (store, room) in &room {
                prop_assert!(count(*store) <= *room);
                for (other, room) in room_pairs(&rooms) {
                    let full = count(other) == room;
                    prop_assert!(full || count(*store) <= count(other) + 1);
                }
            }
        }
    }

    #[test]
    fn stores_with_fewer_chunks_come_first() {
        let stores = [(StoreId(1), 9, 2), (StoreId(4), 1, 1), (StoreId(7), 9, 1)];
        let turns = |last, wanted| level(&stores, last, wanted).into_iter().map(|s| s.0).collect::<Vec<_>>();
        assert_eq!(turns(None, 5), [4, 7, 1, 7, 1]);
        assert_eq!(turns(Some(StoreId(4)), 3), [7, 4, 7]);
        assert_eq!(turns(None, 100).len(), 19);
    }

    proptest! {
        /// Catches a preference, and turns of a store that has none left. Without chunks the order
        /// is that of [`turns`].
        #[test]
        fn counts_become_equal(
            all in proptest::collection::vec((0..6_u64, 0..6_u64), 1..6),
            wanted in 0..40_u64,
        ) {
            let stores = |has: bool| {
                let store = |(i, (room, had)): (usize, &(u64, u64))| (StoreId(i as u16), *room, if has { *had } else { 0 });
                all.iter().enumerate().map(store).collect::<Vec<_>>()
            };
            let given = level(&stores(true), Some(StoreId(2)), wanted);
            prop_assert_eq!(given.len() as u64, wanted.min(all.iter().map(|(room, _)| room).sum()));
            let turns_of = |store| given.iter().filter(|turn| **turn == store).count() as u64;
            for (store, room, has) in stores(true) {
                prop_assert!(turns_of(store) <= room);
                for (other, room, had) in stores(true) {
                    let may_not = turns_of(store) == 0 || turns_of(other) == room;
                    prop_assert!(may_not || has + turns_of(store) <= had + turns_of(other) + 1);
                }
            }
            let rooms: Vec<_> = stores(false).iter().map(|(store, room, _)| (*store, *room)).collect();
            prop_assert_eq!(level(&stores(false), Some(StoreId(2)), wanted), turns(&rooms, Some(StoreId(2)), wanted));
        }
    }

    fn room_pairs(rooms: &[u64]) -> Vec<(StoreId, u64)> {
        rooms.iter().enumerate().map(|(i, room)| (StoreId(i as u16), *room)).collect()
    }
}
