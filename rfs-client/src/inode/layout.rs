//! A cache of the extents of an open file. No I/O, no locks, no clock.
//!
//! Below [`LayoutCache::known_to`] the cache holds the server's extents. While the layout
//! generation stays the same, the server only adds extents; it moves and removes none.

use rfs_proto::{BLOCK, DataPlace, Extent, Layout};
use smallvec::SmallVec;

use crate::{
    inode::size::LayoutId,
    remote::{address::Epoch, records::Glimpse},
};

/// A part of a file range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes at `arena`, in the memory of one store.
    Data {
        /// Place of the first byte: the number of a [`DataPlace`].
        arena: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Bytes without space, which read as zero.
    Hole {
        /// Length in bytes.
        len: u64,
    },
}

impl Piece {
    pub(crate) fn len(self) -> u64 {
        match self {
            Piece::Data { len, .. } | Piece::Hole { len } => len,
        }
    }
}

/// Returns true if the place of a piece is in the server's own arena.
pub(crate) fn is_in_arena(place: u64) -> bool {
    DataPlace::from_number(place).store() == 0
}

/// Usually one or two pieces.
pub(crate) type Pieces = SmallVec<[Piece; 4]>;

/// The known extents of one file.
#[derive(Debug, Default)]
pub(crate) struct LayoutCache {
    generation: u64,
    /// Epoch of the fetch. Addresses of an earlier epoch are void.
    epoch: Epoch,
    /// Recall state: layouts of this epoch before this generation are void, and so are those of
    /// earlier epochs.
    recalled: (Epoch, u64),
    /// Extents sorted by file offset. They do not overlap and cannot be joined.
    extents: Vec<Extent>,
    /// Offset up to which the layout is known: ranges below it without an extent are holes.
    known_to: u64,
    /// Allocated space of the inode at a time before the fetch. While the inode has as much, the
    /// holes are still holes.
    stamp: Option<u64>,
}

/// Checks a layout of the server: extents are whole blocks, sorted, not overlapping, inside the
/// arena or inside the numbers of one store.
pub(crate) fn validate(layout: &Layout, arena_len: u64) -> Result<(), &'static str> {
    let mut end = 0;
    for e in &layout.extents {
        let aligned = [e.file, e.arena, e.len].iter().all(|n| n.is_multiple_of(BLOCK));
        if e.len == 0 || !aligned {
            return Err("an extent that is empty or not made of blocks");
        }
        let place = DataPlace::from_number(e.arena);
        let (Some(file_end), Some(end_in_store)) = (e.file.checked_add(e.len), place.end(e.len)) else {
            return Err("an extent past the end of numbers");
        };
        if e.file < end {
            return Err("extents that overlap or are not sorted");
        }
        if is_in_arena(e.arena) && end_in_store > arena_len {
            return Err("an extent outside the arena");
        }
        end = file_end;
    }
    Ok(())
}

impl LayoutCache {
    /// Creates a cache from the server's reply for offset 0.
    pub(crate) fn of(layout: &Layout, epoch: Epoch) -> LayoutCache {
        let mut cache = LayoutCache { generation: layout.generation, epoch, ..LayoutCache::default() };
        cache.merge(0, layout);
        cache
    }

    /// Merges the server's reply for `offset`. Returns false, without a change, if the reply is of
    /// another generation or leaves a gap.
    pub(crate) fn merge(&mut self, offset: u64, layout: &Layout) -> bool {
        if layout.generation != self.generation || offset > self.known_to {
            return false;
        }
        // The reply has all extents that end after the offset. The first extent may begin before
        // it.
        let from = layout.extents.first().map_or(offset, |e| e.file.min(offset));
        self.extents.retain(|e| e.file < from);
        if let Some(last) = self.extents.last_mut() {
            last.len = last.len.min(from - last.file);
        }
        self.extents.reserve(layout.extents.len());
        for extent in &layout.extents {
            self.push(*extent);
        }
        let end = self.extents.last().map_or(0, Extent::file_end);
        self.known_to = if layout.complete { u64::MAX } else { self.known_to.min(offset).max(end) };
        self.stamp = None;
        true
    }

    fn push(&mut self, extent: Extent) {
        if let Some(last) = self.extents.last_mut()
            && last.file_end() == extent.file
            && last.arena + last.len == extent.arena
        {
            last.len += extent.len;
            return;
        }
        self.extents.push(extent);
    }

    /// Takes in a fetched layout. Returns false, without a change, if it was recalled meanwhile.
    pub(crate) fn renew(&mut self, fresh: LayoutCache) -> bool {
        let of = (fresh.epoch, fresh.generation);
        let good = of >= self.recalled && of >= (self.epoch, self.generation);
        if good {
            *self = LayoutCache { recalled: self.recalled, ..fresh };
        }
        good
    }

    /// Voids layouts of this epoch before this generation, including those in flight.
    pub(crate) fn recalled(&mut self, epoch: Epoch, generation: u64) {
        self.recalled = self.recalled.max((epoch, generation));
        if (self.epoch, self.generation) < self.recalled {
            *self = self.empty(generation, epoch);
        }
    }

    /// Returns an empty cache.
    fn empty(&self, generation: u64, epoch: Epoch) -> LayoutCache {
        LayoutCache { generation, epoch, recalled: self.recalled, ..LayoutCache::default() }
    }

    /// Forgets all extents. `generation` is the generation to fetch.
    pub(crate) fn clear(&mut self, generation: u64) {
        *self = self.empty(generation, self.epoch);
    }

    /// Returns the epoch and the generation.
    pub(crate) fn id(&self) -> LayoutId {
        LayoutId { epoch: self.epoch, generation: self.generation }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the allocated space for which all holes are known, if any.
    pub(crate) fn stamp(&self) -> Option<u64> {
        self.stamp
    }

    /// Sets the allocated space for which all holes are known, from a record that was read before
    /// the layout was fetched. A record of another generation says nothing.
    pub(crate) fn set_stamp(&mut self, seen: Glimpse) {
        self.stamp = seen.allocated.filter(|_| seen.generation == self.generation);
    }

    /// Returns the offset up to which the layout is known.
    pub(crate) fn known_to(&self) -> u64 {
        self.known_to
    }

    /// Returns true if every byte of the range has space.
    pub(crate) fn covers(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        let mut at = offset;
        for e in &self.extents[self.first_after(offset)..] {
            if at >= end || e.file > at {
                break;
            }
            at = e.file_end();
        }
        at >= end
    }

    /// Splits a range into pieces, in order and without gaps. Unknown parts become holes.
    pub(crate) fn pieces(&self, offset: u64, len: u64) -> Pieces {
        let end = offset.saturating_add(len);
        let mut out = Pieces::new();
        let mut at = offset;
        for e in &self.extents[self.first_after(offset)..] {
            if e.file >= end {
                break;
            }
            if e.file > at {
                out.push(Piece::Hole { len: e.file - at });
                at = e.file;
            }
            let len = e.file_end().min(end) - at;
            out.push(Piece::Data { arena: e.arena + (at - e.file), len });
            at += len;
        }
        if at < end {
            out.push(Piece::Hole { len: end - at });
        }
        out
    }

    /// Returns the place of a range that lies in one extent of the server's arena. Returns `None`
    /// for another range, or if the layout has another generation.
    pub(crate) fn one_place(&self, generation: u64, offset: u64, len: u64) -> Option<u64> {
        let extent = self.extents.get(self.first_after(offset))?;
        let inside = extent.file <= offset && offset.checked_add(len)? <= extent.file_end();
        let place = extent.arena + offset.checked_sub(extent.file)?;
        (inside && generation == self.generation && is_in_arena(place)).then_some(place)
    }

    /// Returns the index of the first extent that ends after `offset`.
    fn first_after(&self, offset: u64) -> usize {
        self.extents.partition_point(|e| e.file_end() <= offset)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const B: u64 = BLOCK;

    #[test]
    fn a_layout_that_was_recalled_during_its_fetch_is_not_taken_in() {
        let fetched = || LayoutCache::of(&layout(&[extent(0, 5, 2)], true), Epoch(1));
        let mut cache = LayoutCache::default();
        assert!(cache.renew(fetched()) && cache.covers(0, 2 * B));
        cache.recalled(Epoch(1), 7);
        assert!(cache.covers(0, 2 * B), "it is of that generation");
        cache.recalled(Epoch(1), 8);
        assert!(!cache.covers(0, 1) && cache.known_to() == 0);
        assert!(!cache.renew(fetched()) && !cache.covers(0, 1));
        // A close does not undo the recall.
        cache.clear(0);
        assert!(!cache.renew(fetched()));
        // In another epoch generations may begin anew.
        let of_epoch = |epoch| LayoutCache { epoch: Epoch(epoch), ..fetched() };
        assert!(cache.renew(of_epoch(2)) && cache.covers(0, 2 * B));
        cache.recalled(Epoch(2), 8);
        assert!(!cache.renew(fetched()) && !cache.renew(of_epoch(2)));
        // The file was never open here, and its layout was recalled during its first open.
        let mut cache = LayoutCache::default();
        cache.recalled(Epoch(2), 8);
        assert!(!cache.renew(of_epoch(2)));
    }

    fn extent(file: u64, arena: u64, len: u64) -> Extent {
        Extent { file: file * B, arena: arena * B, len: len * B }
    }

    fn layout(extents: &[Extent], complete: bool) -> Layout {
        Layout { generation: 7, extents: extents.to_vec(), complete }
    }

    fn seen(generation: u64, allocated: Option<u64>) -> Glimpse {
        Glimpse { size: 0, generation, allocated }
    }

    fn cache(extents: &[Extent]) -> LayoutCache {
        let mut cache = LayoutCache::of(&layout(extents, true), Epoch(0));
        cache.set_stamp(seen(7, Some(1)));
        cache
    }

    #[test]
    fn an_empty_file_is_one_hole() {
        let c = cache(&[]);
        assert!(!c.covers(0, 1));
        assert_eq!(c.pieces(10, 20).as_slice(), [Piece::Hole { len: 20 }]);
        assert_eq!(c.known_to(), u64::MAX);
    }

    #[test]
    fn ranges_are_split_at_extents_and_holes() {
        let c = cache(&[extent(1, 10, 2), extent(5, 3, 1)]);
        assert_eq!(
            c.pieces(100, 6 * B).as_slice(),
            [
                Piece::Hole { len: B - 100 },
                Piece::Data { arena: 10 * B, len: 2 * B },
                Piece::Hole { len: 2 * B },
                Piece::Data { arena: 3 * B, len: B },
                Piece::Hole { len: 100 },
            ]
        );
        assert!(c.covers(B + 5, 2 * B - 5));
        assert!(!c.covers(B + 5, 2 * B - 4));
        assert_eq!(c.one_place(c.generation(), u64::MAX, 1), None);
        assert!(!c.covers(0, B + 1));
    }

    #[test]
    fn neighbours_in_file_and_arena_are_one_piece() {
        let c = cache(&[extent(0, 10, 2), extent(2, 12, 2), extent(4, 20, 1)]);
        assert_eq!(c.pieces(0, 4 * B).as_slice(), [Piece::Data { arena: 10 * B, len: 4 * B }]);
        assert!(c.covers(0, 5 * B));
    }

    #[test]
    fn a_reply_replaces_the_extents_of_its_range() {
        let mut c = cache(&[extent(0, 10, 2)]);
        assert!(c.merge(2 * B, &layout(&[extent(0, 10, 4)], true)));
        assert_eq!(c.pieces(0, 4 * B).as_slice(), [Piece::Data { arena: 10 * B, len: 4 * B }]);
        assert_eq!(c.stamp(), None, "after a merge the whole is not known to be fresh");
    }

    /// The space that was seen before a truncation may be the space again later, with other holes.
    #[test]
    fn allocated_space_of_another_generation_confirms_no_holes() {
        let mut c = cache(&[extent(0, 10, 2)]);
        assert_eq!(c.stamp(), Some(1));
        c.set_stamp(seen(6, Some(2)));
        assert_eq!(c.stamp(), None);
        c.set_stamp(seen(7, None));
        assert_eq!(c.stamp(), None);
    }

    #[test]
    fn replies_of_another_generation_or_behind_a_gap_are_not_merged() {
        let mut c = LayoutCache::of(&layout(&[extent(0, 10, 2)], false), Epoch(0));
        assert_eq!(c.known_to(), 2 * B);
        assert!(!c.merge(3 * B, &layout(&[], true)));
        assert!(!c.merge(0, &Layout { generation: 8, ..Layout::default() }));
        assert!(c.merge(2 * B, &layout(&[extent(9, 1, 1)], false)));
        assert_eq!(c.known_to(), 10 * B);
    }

    #[test]
    fn an_invalid_layout_is_rejected() {
        let arena = 100 * B;
        assert_eq!(validate(&layout(&[extent(0, 99, 1)], true), arena), Ok(()));
        let in_store = |offset, len| Extent {
            arena: DataPlace::new(1, offset).expect("a place").number(),
            ..extent(0, 0, len)
        };
        let last = DataPlace::STORE_LEN - B;
        assert_eq!(validate(&layout(&[in_store(last, 1)], true), arena), Ok(()));
        for bad in [
            layout(&[in_store(last, 2)], true),
            layout(&[extent(0, 99, 2)], true),
            layout(&[extent(0, 0, 0)], true),
            layout(&[extent(4, 0, 1), extent(0, 5, 1)], true),
            layout(&[extent(0, 0, 2), extent(1, 5, 1)], true),
            layout(&[Extent { file: u64::MAX / B * B, arena: 0, len: B }], true),
            layout(&[Extent { file: 1, arena: 0, len: B }], true),
        ] {
            assert!(validate(&bad, arena).is_err(), "{bad:?}");
        }
    }

    proptest! {
        /// Compares with an array of optional arena blocks.
        #[test]
        fn pieces_and_cover_agree_with_a_block_map(
            map in prop::collection::vec(prop::option::weighted(0.6, 0u64..64), 0..40),
            offset in 0u64..45 * B, len in 1u64..45 * B, asked in 0u64..40,
        ) {
            let all: Vec<Extent> = map.iter().enumerate()
                .filter_map(|(i, a)| a.map(|a| extent(i as u64, a, 1))).collect();
            let mut c = cache(&all);
            // Merging known extents again, from any offset, changes nothing.
            let rest: Vec<Extent> = all.iter().copied().filter(|e| e.file_end() > asked * B).collect();
            prop_assert!(c.merge(asked * B, &layout(&rest, true)));

            let at = |byte: u64| map.get((byte / B) as usize).copied().flatten().map(|a| a * B + byte % B);
            let mut pos = offset;
            for piece in c.pieces(offset, len) {
                prop_assert!(piece.len() > 0);
                for step in [0, piece.len() / 2, piece.len() - 1] {
                    let expect = match piece { Piece::Data { arena, .. } => Some(arena + step), Piece::Hole { .. } => None };
                    prop_assert_eq!(at(pos + step), expect);
                }
                pos += piece.len();
            }
            prop_assert_eq!(pos, offset + len);
            let one = match c.pieces(offset, len)[..] {
                [Piece::Data { arena, .. }] => Some(arena),
                _ => None,
            };
            prop_assert_eq!(c.one_place(c.generation(), offset, len), one);
            prop_assert_eq!(c.one_place(c.generation() + 1, offset, len), None);
            let full = (offset / B..=(offset + len - 1) / B).all(|b| at(b * B).is_some());
            prop_assert_eq!(c.covers(offset, len), full);
        }
    }
}
