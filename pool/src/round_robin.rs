//! Distribution of a number of chunks over stores.
//!
//! The stores get turns, from a given store on, so that a region has as many stores as possible,
//! and no store has two chunks more than another one that had room. Equal inputs give equal
//! results: a replayed log places chunks as before.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

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

    fn room_pairs(rooms: &[u64]) -> Vec<(StoreId, u64)> {
        rooms.iter().enumerate().map(|(i, room)| (StoreId(i as u16), *room)).collect()
    }
}
