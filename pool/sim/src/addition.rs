//! Bytes that move when stores are added. No I/O, no locks, no clock.

use crate::{
    model::{MAX_PIECES, ModelError},
    placement::{File, Placement, Space, imbalance},
};

/// The data that moves when stores are added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addition {
    /// Stores before.
    pub stores: u16,
    /// Stores that are added.
    pub added: u16,
    /// Bytes of all files.
    pub bytes: u64,
    /// The share of the added stores, if all stores have equally many bytes.
    pub ideal: u64,
    /// Bytes above the mean: as many move until all stores have equally many.
    pub level: u64,
    /// Bytes that have to move if every piece goes to the store that has its turn now.
    pub anew: u64,
    /// Most bytes of a store divided by the mean, when stores were added and nothing moved.
    pub imbalance: f64,
    /// The same after new files with as many bytes as the old ones.
    pub imbalance_later: f64,
}

/// Adds a tenth of the stores, at least one, to a pool with `files` files of `len` bytes.
///
/// # Errors
/// The files do not fit into the numbers of the model.
pub fn tenth(
    placement: Placement,
    unit: u64,
    stores: u16,
    files: usize,
    len: u64,
) -> Result<Addition, ModelError> {
    let too_large = || ModelError::TooLarge { clients: files, file: len };
    let added = (stores / 10).max(1);
    let all = stores.checked_add(added).ok_or_else(too_large)?;
    let pieces = len.div_ceil(unit).checked_mul(files as u64 * 4);
    pieces.filter(|pieces| *pieces <= MAX_PIECES).ok_or_else(too_large)?;
    let bytes = len.next_multiple_of(unit).checked_mul(files as u64 * 2).ok_or_else(too_large)?;
    bytes.checked_mul(u64::from(all)).ok_or_else(too_large)?;
    let create = |space: &mut Space| -> Result<Vec<File>, ModelError> {
        (0..files).map(|_| space.create(len).ok_or_else(too_large)).collect()
    };
    let mut space = Space::new(placement, unit, stores, bytes);
    let before = create(&mut space)?;
    (0..added).for_each(|_| space.add_store(bytes));
    let mut fresh = Space::new(placement, unit, all, bytes);
    let after = create(&mut fresh)?;
    let used: u64 = space.used().iter().sum();
    let fair = used / u64::from(all);
    let level = space.used().iter().map(|used| used.saturating_sub(fair)).sum();
    let unbalanced = imbalance(space.used()).unwrap_or(1.0);
    create(&mut space)?;
    Ok(Addition {
        stores,
        added,
        bytes: used,
        // At most the sum, which is a number.
        ideal: (u128::from(used) * u128::from(added) / u128::from(all)) as u64,
        level,
        anew: before.iter().zip(&after).map(|(old, new)| differing(old, new, unit)).sum(),
        imbalance: unbalanced,
        imbalance_later: imbalance(space.used()).unwrap_or(1.0),
    })
}

/// Returns the bytes of pieces that two placements of a file have in different stores.
fn differing(old: &File, new: &File, unit: u64) -> u64 {
    let pairs = old.parts(unit, 0, old.len).zip(&new.stores);
    pairs.filter(|((store, _), other)| store != *other).map(|((_, bytes), _)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an ideal that is more than the share of the new stores.
    #[test]
    fn the_ideal_is_the_share_of_the_new_stores() {
        let added = tenth(Placement::Stripe, 1, 10, 4, 1100).unwrap();
        assert_eq!((added.stores, added.added, added.bytes), (10, 1, 4400));
        // Each of ten stores has 440 bytes, but for ends of files, and 400 in the end.
        assert!(added.ideal == 400 && added.level.abs_diff(400) <= 8, "{added:?}");
        assert!((added.imbalance - 1.1).abs() < 0.02 && (added.imbalance_later - 1.05).abs() < 0.02);
        // Turns over another number of stores change nearly all places.
        assert!(added.anew > added.bytes * 8 / 10 && added.anew < added.bytes, "{added:?}");
    }

    #[test]
    fn numbers_that_are_too_large_are_refused() {
        assert!(tenth(Placement::Stripe, 1, u16::MAX, 1, 1).is_err());
        assert!(tenth(Placement::Stripe, 1 << 20, 10, 10, u64::MAX / 4).is_err());
    }
}
