//! Files in stores, by the pool's own functions. No I/O, no locks, no clock.
//!
//! [`Placement::Stripe`] is that of the file system: the server cuts files into pieces, and asks
//! [`pool::stripe`] for the store of each. [`Placement::Turns`] is that of RStore: the master gives
//! chunks of a region to stores by [`pool::turns`], from the store after the last one on.
//!
//! Invariant: the bytes of all files are the bytes that the stores have in use.

use clap::ValueEnum;
use pool::{StoreId, stripe, turns};

/// Which stores have the pieces of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// The file system's: the server begins, and the other stores follow, in each file from another
    /// store on.
    Stripe,
    /// RStore's: chunks take turns, from the store after the last chunk on.
    Turns,
}

/// A file: the store of each piece, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Length in bytes.
    pub len: u64,
    /// Stores of the pieces. Only the last piece may be shorter than the unit.
    pub stores: Vec<u16>,
}

/// The use of stores.
#[derive(Clone, Debug)]
pub struct Space {
    placement: Placement,
    /// Length of a piece.
    unit: u64,
    /// Free bytes of each store.
    room: Vec<u64>,
    used: Vec<u64>,
    last: Option<StoreId>,
    /// Number of files: the next one's shift.
    files: u64,
}

impl Space {
    /// Returns empty stores with `room` bytes each. `unit` and `stores` are not zero.
    pub fn new(placement: Placement, unit: u64, stores: u16, room: u64) -> Self {
        let stores = usize::from(stores);
        Self { placement, unit, room: vec![room; stores], used: vec![0; stores], last: None, files: 0 }
    }

    /// Adds an empty store with `room` bytes.
    pub fn add_store(&mut self, room: u64) {
        self.room.push(room);
        self.used.push(0);
    }

    /// Creates a file. Returns `None`, without a change, if the stores have too little room.
    pub fn create(&mut self, len: u64) -> Option<File> {
        if self.room.iter().map(|room| room / self.unit).sum::<u64>() < len.div_ceil(self.unit) {
            return None;
        }
        let stores = match self.placement {
            Placement::Stripe => self.stripe(len)?,
            Placement::Turns => self.turns(len),
        };
        for (n, store) in stores.iter().enumerate() {
            let bytes = self.unit.min(len - n as u64 * self.unit);
            self.used[usize::from(*store)] += bytes;
            self.room[usize::from(*store)] -= bytes;
        }
        self.files += 1;
        Some(File { len, stores })
    }

    /// Chooses stores as the server does for a file that grows from its beginning.
    fn stripe(&self, len: u64) -> Option<Vec<u16>> {
        let mut room = self.room.clone();
        let stores = room.len();
        let mut chosen = Vec::new();
        for at in (0..len).step_by(usize::try_from(self.unit).ok()?) {
            let bytes = stripe::to_piece_end(at, self.unit).min(len - at);
            let turn = stripe::turn(at, self.unit, stores, self.files);
            let index = stripe::choose(turn, stores, bytes, |index, bytes| room[index] >= bytes)?;
            room[index] = room[index].checked_sub(bytes)?;
            chosen.push(u16::try_from(index).ok()?);
        }
        Some(chosen)
    }

    /// Chooses stores as RStore's master does for the chunks of a region.
    fn turns(&mut self, len: u64) -> Vec<u16> {
        let number =
            |(index, room): (usize, &u64)| Some((StoreId(u16::try_from(index).ok()?), room / self.unit));
        let room: Vec<(StoreId, u64)> = self.room.iter().enumerate().filter_map(number).collect();
        let chosen = turns(&room, self.last, len.div_ceil(self.unit));
        self.last = chosen.last().copied().or(self.last);
        chosen.into_iter().map(|store| store.0).collect()
    }

    /// Returns the bytes in use of each store.
    pub fn used(&self) -> &[u64] {
        &self.used
    }

    /// Returns the length of a piece.
    pub fn unit(&self) -> u64 {
        self.unit
    }
}

impl File {
    /// Returns the stores and the lengths of the parts of a range inside the file.
    pub fn parts(&self, unit: u64, offset: u64, len: u64) -> impl Iterator<Item = (u16, u64)> + '_ {
        let end = (offset + len).min(self.len);
        (offset / unit..end.div_ceil(unit)).filter_map(move |piece| {
            let (from, to) = ((piece * unit).max(offset), ((piece + 1) * unit).min(end));
            let store = *self.stores.get(usize::try_from(piece).ok()?)?;
            Some((store, to - from))
        })
    }
}

/// Returns the largest value divided by the mean: 1 if all are equal. Returns `None` if all are
/// zero.
pub fn imbalance(values: &[u64]) -> Option<f64> {
    let (sum, most) = (values.iter().sum::<u64>(), values.iter().max().copied()?);
    (sum > 0).then(|| most as f64 * values.len() as f64 / sum as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_are_where_the_pool_puts_them() {
        let mut space = Space::new(Placement::Stripe, 4, 3, 100);
        assert_eq!(space.create(14).unwrap().stores, [0, 1, 2, 0]);
        assert_eq!(space.create(8).unwrap().stores, [0, 2], "the second piece is elsewhere in each file");
        assert_eq!(space.used(), [10, 4, 8]);
        let mut space = Space::new(Placement::Turns, 4, 3, 100);
        assert_eq!(space.create(14).unwrap().stores, [0, 1, 2, 0]);
        assert_eq!(space.create(8).unwrap().stores, [1, 2], "after the last chunk");
    }

    #[test]
    fn a_range_has_its_parts() {
        let file = File { len: 14, stores: vec![0, 1, 2, 0] };
        let parts = |offset, len| file.parts(4, offset, len).collect::<Vec<_>>();
        assert_eq!(parts(0, 4), [(0, 4)]);
        assert_eq!(parts(3, 6), [(0, 1), (1, 4), (2, 1)]);
        assert_eq!(parts(10, 100), [(2, 2), (0, 2)], "up to the end of the file");
    }

    #[test]
    fn equal_stores_have_an_imbalance_of_one() {
        assert_eq!(imbalance(&[4, 4, 4]), Some(1.0));
        assert_eq!(imbalance(&[8, 0, 4]), Some(2.0));
        assert_eq!(imbalance(&[0, 0]), None);
    }

    proptest! {
        /// Catches bytes that appear or vanish: a piece that is counted twice, or in no store.
        #[test]
        fn bytes_are_conserved(
            stores in 1..9_u16, unit in 1..8_u64, lens in proptest::collection::vec(1..60_u64, 1..20),
            is_stripe in any::<bool>(),
        ) {
            let placement = if is_stripe { Placement::Stripe } else { Placement::Turns };
            let mut space = Space::new(placement, unit, stores, 80);
            let mut files = 0;
            for len in lens {
                let Some(file) = space.create(len) else { continue };
                files += len;
                prop_assert_eq!(file.parts(unit, 0, len).map(|(_, len)| len).sum::<u64>(), len);
                prop_assert_eq!(space.used().iter().sum::<u64>(), files);
                prop_assert!(space.used().iter().zip(&space.room).all(|(used, room)| used + room == 80));
            }
        }
    }
}
