//! The store of each piece of a file.
//!
//! A file is cut at multiples of a unit, and the stores take turns piece by piece. The first store,
//! which is the owner's own memory, begins: a small file lies there. The other stores follow, in
//! each file from another store on. So files that have fewer pieces than there are stores use all
//! stores together. If the store whose turn it is has too little room, the next one that has enough
//! takes the piece.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

/// Returns the number of bytes from `at` to the end of the piece. `unit` is not zero.
pub fn to_piece_end(at: u64, unit: u64) -> u64 {
    unit - at % unit
}

/// Returns the index of the store whose turn the piece at `at` is. `shift` is a number of the file.
/// Pieces next to each other are in different stores, as far as there are stores. `unit` and
/// `stores` are not zero.
pub fn turn(at: u64, unit: u64, stores: usize, shift: u64) -> usize {
    let others = stores as u64 - 1;
    match at / unit % stores as u64 {
        0 => 0,
        // Both terms of the sum are below the number of stores, and so is the result.
        turn => 1 + ((turn - 1 + shift % others) % others) as usize,
    }
}

/// Chooses one of `stores` stores for `len` bytes. From `turn` on, it is the first store with room
/// for all bytes, else the first store with room for one byte. `has` tells whether the store with
/// an index has room for a number of bytes.
pub fn choose(turn: usize, stores: usize, len: u64, has: impl Fn(usize, u64) -> bool) -> Option<usize> {
    let order = || (turn..stores).chain(0..turn.min(stores));
    order().find(|&index| has(index, len)).or_else(|| order().find(|&index| has(index, 1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_take_turns() {
        let turns =
            |unit, stores, shift| (0..5).map(|at| turn(at * 4096, unit, stores, shift)).collect::<Vec<_>>();
        assert_eq!(turns(4096, 3, 0), [0, 1, 2, 0, 1]);
        assert_eq!(turns(8192, 3, 0), [0, 0, 1, 1, 2]);
        assert_eq!(turns(4096, 3, 7), [0, 2, 1, 0, 2]);
        assert_eq!((turns(4096, 1, 7), turns(4096, 2, 7)), (vec![0; 5], vec![0, 1, 0, 1, 0]));
        assert_eq!(
            (to_piece_end(0, 8192), to_piece_end(8191, 8192), to_piece_end(8192, 8192)),
            (8192, 1, 8192)
        );
    }

    #[test]
    fn a_full_store_passes_its_turn_on() {
        let room = [10, 3, 0, 7];
        let chosen = |turn, len| choose(turn, 4, len, |index, bytes| room[index] >= bytes);
        assert_eq!(
            (chosen(0, 5), chosen(1, 5), chosen(2, 5), chosen(3, 8)),
            (Some(0), Some(3), Some(3), Some(0))
        );
        // A part is better than nothing.
        assert_eq!((chosen(1, 11), chosen(2, 11)), (Some(1), Some(3)));
        assert_eq!(choose(1, 4, 1, |_, _| false), None);
    }

    /// Catches short files that all lie in the first stores.
    #[test]
    fn short_files_use_all_stores_together() {
        let mut pieces = [0; 10];
        for (file, piece) in (0..90).flat_map(|file| (0..3).map(move |piece| (file, piece))) {
            pieces[turn(piece, 1, 10, file)] += 1;
        }
        // The first pieces of all files are in the first store.
        assert_eq!(pieces, [90, 20, 20, 20, 20, 20, 20, 20, 20, 20]);
    }

    proptest! {
        /// Catches neighbours in one store: a long request then uses fewer stores than it could.
        #[test]
        fn neighbours_are_in_different_stores(stores in 2..9_usize, shift in any::<u64>(), first in 1..99_u64) {
            let turns = (0..stores as u64).map(|n| turn(first + n, 1, stores, shift));
            let mut turns: Vec<usize> = turns.collect();
            turns.sort_unstable();
            prop_assert_eq!(turns, (0..stores).collect::<Vec<_>>());
        }

        /// Catches an order that leaves a store out.
        #[test]
        fn a_store_with_room_is_found(room in proptest::collection::vec(0..4_u64, 1..8), at in 0..64_u64) {
            let turn = turn(at, 1, room.len(), at);
            let chosen = choose(turn, room.len(), 2, |index, bytes| room[index] >= bytes);
            let most = room.iter().max().copied().unwrap_or(0);
            prop_assert_eq!(chosen.map(|index| room[index].min(2)).unwrap_or(0), most.min(2));
        }
    }
}
