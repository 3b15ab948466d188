//! The extents of a file, and how much space a growing file gets. No I/O, no locks, no clock.
//!
//! A file owns no space: the caller returns released ranges to the arena.
//!
//! # Concurrency
//! None; the caller holds the inode.

use std::collections::BTreeMap;

use rfs_proto::{BLOCK, Extent, MAX_EXTENTS, MAX_FILE_SIZE, record::Space};

use super::alloc::{Want, range::Range};

/// Maximum space in bytes that a file gets ahead of need at a time.
const MAX_AHEAD: u64 = 64 << 20;

/// Minimum space in bytes that a growing file gets ahead of need.
const MIN_AHEAD: u64 = 64 << 10;

/// Space ahead of need takes at most the free space divided by this number, so that concurrently
/// growing files leave space to each other.
const FREE_SHARE: u64 = 16;

/// The extents of a file, by file offset. Extents that continue each other in file and arena are
/// merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileMap {
    extents: BTreeMap<u64, Extent>,
    allocated: u64,
    /// End of the space that requests needed; the space behind it was allocated ahead of need.
    needed_to: u64,
    /// End of the space that is kept although the file is shorter.
    kept_to: u64,
    /// Range in which extents have changed since the last [`FileMap::take_touched`].
    touched: Option<(u64, u64)>,
}

/// Rounds up to a whole block. Rounds down if the result would overflow.
pub fn block_up(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(BLOCK).unwrap_or(bytes / BLOCK * BLOCK)
}

impl FileMap {
    /// Returns the allocated bytes.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Returns the space as a record shows it.
    pub fn space(&self) -> Space {
        Space { allocated: self.allocated / 512, needed_to: self.needed_to, end: self.end() }
    }

    /// Returns the allocated bytes of the arena.
    pub fn bytes(&self) -> u64 {
        self.allocated
    }

    /// Returns the end of the space that requests needed.
    pub fn needed_to(&self) -> u64 {
        self.needed_to
    }

    /// Records that a request needs space up to `end`.
    pub fn note_need(&mut self, end: u64) {
        self.needed_to = self.needed_to.max(block_up(end));
    }

    /// Keeps the space up to `end` when the file is closed, although the file is shorter.
    pub fn keep(&mut self, end: u64) {
        self.kept_to = self.kept_to.max(block_up(end));
    }

    /// Returns the end of the space that is kept.
    pub fn kept_to(&self) -> u64 {
        self.kept_to
    }

    /// Splits a range into pieces without gaps: file offset, arena offset (`None` for a hole), and
    /// length.
    pub fn pieces(&self, offset: u64, end: u64) -> Vec<(u64, Option<u64>, u64)> {
        let mut pieces = Vec::new();
        let mut at = offset;
        if offset >= end {
            return pieces;
        }
        for extent in self.from(offset).take_while(|extent| extent.file < end) {
            if extent.file > at {
                pieces.push((at, None, extent.file - at));
                at = extent.file;
            }
            let len = extent.file_end().min(end) - at;
            pieces.push((at, Some(extent.arena + (at - extent.file)), len));
            at += len;
        }
        if at < end {
            pieces.push((at, None, end - at));
        }
        pieces
    }

    /// Returns the pieces of a range that [`FileMap::punch`] keeps: parts of the first and the last
    /// block.
    pub fn edges(&self, offset: u64, end: u64) -> Vec<(u64, Option<u64>, u64)> {
        let (from, to) = (block_up(offset), end / BLOCK * BLOCK);
        if from >= to {
            return self.pieces(offset, end);
        }
        [self.pieces(offset, from), self.pieces(to, end)].concat()
    }

    /// Removes the whole blocks in `offset..end`. Returns their space.
    pub fn punch(&mut self, offset: u64, end: u64) -> Vec<Range> {
        let (from, to) = (block_up(offset), end / BLOCK * BLOCK);
        if from >= to {
            return Vec::new();
        }
        let touched: Vec<Extent> = self.from(from).take_while(|extent| extent.file < to).collect();
        let mut given_up = Vec::new();
        for extent in touched {
            self.extents.remove(&extent.file);
            let (start, stop) = (extent.file.max(from), extent.file_end().min(to));
            given_up.push(Range { start: extent.arena + (start - extent.file), len: stop - start });
            if extent.file < start {
                self.extents.insert(extent.file, Extent { len: start - extent.file, ..extent });
            }
            if stop < extent.file_end() {
                let arena = extent.arena + (stop - extent.file);
                self.extents.insert(stop, Extent { file: stop, arena, len: extent.file_end() - stop });
            }
        }
        self.allocated -= given_up.iter().map(|range| range.len).sum::<u64>();
        if !given_up.is_empty() {
            self.touch(from, to);
        }
        given_up
    }

    /// Returns the range in which extents changed since the last call, if any did.
    pub fn take_touched(&mut self) -> Option<(u64, u64)> {
        self.touched.take()
    }

    fn touch(&mut self, from: u64, to: u64) {
        let (first, last) = self.touched.unwrap_or((from, to));
        self.touched = Some((first.min(from), last.max(to)));
    }

    /// Returns all extents in file order.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.extents.values().copied()
    }

    /// Returns the extents of a range, cut to the range.
    pub fn within(&self, from: u64, to: u64) -> impl Iterator<Item = Extent> + '_ {
        self.from(from).take_while(move |extent| extent.file < to).map(move |extent| {
            let (start, stop) = (extent.file.max(from), extent.file_end().min(to));
            Extent { file: start, arena: extent.arena + (start - extent.file), len: stop - start }
        })
    }

    /// Returns true if a range has no space.
    pub fn is_hole(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        self.from(offset).next().is_none_or(|extent| extent.file >= end)
    }

    /// Restores the ends of needed and kept space.
    pub fn restore_ends(&mut self, needed_to: u64, kept_to: u64) {
        (self.needed_to, self.kept_to) = (needed_to, kept_to);
    }

    /// Returns true if [`FileMap::cut`] would change the map.
    pub fn reaches_beyond(&self, size: u64) -> bool {
        self.end().max(self.needed_to).max(self.kept_to) > block_up(size)
    }

    /// Returns the end of the last extent in the file.
    pub fn end(&self) -> u64 {
        self.extents.last_key_value().map_or(0, |(_, extent)| extent.file_end())
    }

    /// Returns the extents that end after `offset`, up to the limit of a reply, and whether these
    /// are all.
    pub fn layout(&self, offset: u64) -> (Vec<Extent>, bool) {
        let mut following = self.from(offset);
        let extents: Vec<Extent> = following.by_ref().take(MAX_EXTENTS).collect();
        let complete = following.next().is_none();
        (extents, complete)
    }

    /// Returns the holes in `offset..end` with their file offsets and the space to request. `free`
    /// is all free space. Only a hole behind the last extent and the end of the file at `size` gets
    /// space ahead of need. So holes of a sparse file stay holes.
    pub fn wants(&self, offset: u64, end: u64, size: u64, free: u64) -> Vec<(u64, Want)> {
        let (offset, end) = (offset / BLOCK * BLOCK, block_up(end));
        let mut wants = Vec::new();
        let mut at = offset;
        let mut before = self.extents.range(..=offset).next_back().map(|(_, extent)| *extent);
        for extent in self.from(offset) {
            if extent.file >= end {
                break;
            }
            if extent.file > at {
                wants.push((at, self.want(at, extent.file, before)));
            }
            at = extent.file_end();
            before = Some(extent);
        }
        if at < end {
            let mut want = self.want(at, end, before);
            if end >= size.max(self.end()) {
                // The file size limit.
                let longest = block_up(MAX_FILE_SIZE).saturating_sub(end);
                want.ahead = self.ahead(end - at, free).min(longest);
            }
            wants.push((at, want));
        }
        wants
    }

    /// Adds space to the hole that begins at `file`, in file order.
    pub fn insert(&mut self, mut file: u64, ranges: &[Range]) {
        for range in ranges {
            self.touch(file, file + range.len);
            let mut extent = Extent { file, arena: range.start, len: range.len };
            file += range.len;
            self.allocated += range.len;
            if let Some((_, before)) = self.extents.range(..extent.file).next_back()
                && before.file_end() == extent.file
                && before.arena + before.len == extent.arena
            {
                extent = Extent { len: before.len + extent.len, ..*before };
            }
            let end = extent.file_end();
            if let Some(after) = self.extents.get(&end).copied()
                && after.arena == extent.arena + extent.len
            {
                self.extents.remove(&end);
                extent.len += after.len;
            }
            self.extents.insert(extent.file, extent);
        }
    }

    /// Removes all blocks that begin at or after `size`. Returns their space.
    pub fn cut(&mut self, size: u64) -> Vec<Range> {
        let keep = block_up(size);
        self.needed_to = self.needed_to.min(keep);
        self.kept_to = self.kept_to.min(keep);
        let mut given_up = Vec::new();
        let gone = self.extents.split_off(&keep);
        if let Some((_, last)) = self.extents.iter_mut().next_back()
            && last.file_end() > keep
        {
            let kept = keep - last.file;
            given_up.push(Range { start: last.arena + kept, len: last.len - kept });
            last.len = kept;
        }
        given_up.extend(gone.into_values().map(|extent| Range { start: extent.arena, len: extent.len }));
        self.allocated -= given_up.iter().map(|range| range.len).sum::<u64>();
        if !given_up.is_empty() {
            self.touch(keep, u64::MAX);
        }
        given_up
    }

    fn from(&self, offset: u64) -> impl Iterator<Item = Extent> + '_ {
        let first = match self.extents.range(..=offset).next_back() {
            Some((&file, extent)) if extent.file_end() > offset => file,
            _ => offset,
        };
        self.extents.range(first..).map(|(_, extent)| *extent)
    }

    fn want(&self, from: u64, to: u64, before: Option<Extent>) -> Want {
        let hint = before.filter(|extent| extent.file_end() == from).map(|extent| extent.arena + extent.len);
        Want { need: to - from, ahead: 0, hint, file: from, shift: 0 }
    }

    /// Returns the space to allocate ahead of need: none at first, then the size of the file,
    /// within limits.
    fn ahead(&self, need: u64, free: u64) -> u64 {
        if self.allocated == 0 {
            return 0;
        }
        let share = free.saturating_sub(need) / FREE_SHARE;
        self.allocated.clamp(MIN_AHEAD, MAX_AHEAD).min(share) / BLOCK * BLOCK
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const B: u64 = BLOCK;

    fn extent(file: u64, arena: u64, len: u64) -> Extent {
        Extent { file: file * B, arena: arena * B, len: len * B }
    }

    fn range(start: u64, len: u64) -> Range {
        Range { start: start * B, len: len * B }
    }

    fn map(extents: &[(u64, u64, u64)]) -> FileMap {
        let mut map = FileMap::default();
        for &(file, arena, len) in extents {
            map.insert(file * B, &[range(arena, len)]);
        }
        map
    }

    #[test]
    fn contiguous_extents_are_merged() {
        let map = map(&[(0, 10, 2), (4, 14, 2), (2, 12, 2), (6, 99, 1)]);
        assert_eq!(map.layout(0), (vec![extent(0, 10, 6), extent(6, 99, 1)], true));
        assert_eq!(map.layout(6 * B - 1).0[0], extent(0, 10, 6));
        assert_eq!(map.layout(6 * B), (vec![extent(6, 99, 1)], true));
        assert_eq!(map.layout(7 * B), (vec![], true));
        assert_eq!((map.allocated(), map.end()), (7 * B, 7 * B));
    }

    #[test]
    fn long_layouts_come_in_parts() {
        let mut map = FileMap::default();
        for at in 0..MAX_EXTENTS as u64 + 1 {
            map.insert(2 * at * B, &[range(2 * at, 1)]);
        }
        let (part, complete) = map.layout(0);
        assert_eq!((part.len(), complete), (MAX_EXTENTS, false));
        let (rest, complete) = map.layout(part[MAX_EXTENTS - 1].file_end());
        assert_eq!((rest.len(), complete), (1, true));
    }

    #[test]
    fn wants_the_holes() {
        let map = map(&[(2, 10, 2), (6, 20, 1)]);
        let want = |file: u64, need: u64, hint: Option<u64>| {
            let want = Want { need: need * B, ahead: 0, hint: hint.map(|h| h * B), file: file * B, shift: 0 };
            (file * B, want)
        };
        assert_eq!(map.wants(0, 7 * B, 0, 0), vec![want(0, 2, None), want(4, 2, Some(12))]);
        assert_eq!(map.wants(3 * B + 1, 4 * B + 1, 0, 0), vec![want(4, 1, Some(12))]);
        assert_eq!(map.wants(5 * B, 5 * B + 1, 0, 0), vec![want(5, 1, None)]);
        assert_eq!(map.wants(2 * B, 4 * B, 0, 0), vec![]);
        assert_eq!(map.wants(9 * B, 9 * B, 0, 0), vec![]);
    }

    #[test]
    fn growth() {
        let ahead = |map: &FileMap, offset: u64, len: u64, free: u64| {
            map.wants(offset, offset + len, offset, free).last().unwrap().1.ahead
        };
        let free = 1 << 40;
        // Exact at first; then proportional to the file, up to the limit.
        assert_eq!(ahead(&FileMap::default(), 0, 5000, free), 0);
        assert_eq!(ahead(&map(&[(0, 0, 1)]), B, 1, free), MIN_AHEAD);
        assert_eq!(ahead(&map(&[(0, 0, 256)]), 256 * B, 1, free), 256 * B);
        assert_eq!(ahead(&map(&[(0, 0, 1 << 20)]), B << 20, 1, free), MAX_AHEAD);
        // None inside of the file.
        assert_eq!(ahead(&map(&[(0, 0, 1), (100, 1, 1)]), 50 * B, 1, free), 0);
        // None before its end.
        let sparse = map(&[(0, 0, 1)]).wants(B, 2 * B, 3 * B, free);
        assert_eq!(sparse[0].1.ahead, 0);
        // None beyond the file size limit.
        let last = MAX_FILE_SIZE - 1;
        assert_eq!(ahead(&map(&[(0, 0, 1)]), last - B, 1, free), B);
        assert_eq!(ahead(&map(&[(0, 0, 1)]), last, 1, free), 0);
        // Less when space is short.
        assert_eq!(ahead(&map(&[(0, 0, 256)]), 256 * B, B, 33 * B), 2 * B);
        assert_eq!(ahead(&map(&[(0, 0, 256)]), 256 * B, B, 10 * B), 0);
    }

    #[test]
    fn cuts_and_pieces() {
        let mut map = map(&[(0, 10, 4), (6, 20, 2)]);
        assert_eq!(map.pieces(B + 1, 2 * B), [(B + 1, Some(11 * B + 1), B - 1)]);
        assert_eq!(
            map.pieces(3 * B, 7 * B),
            [(3 * B, Some(13 * B), B), (4 * B, None, 2 * B), (6 * B, Some(20 * B), B)]
        );
        assert_eq!(map.pieces(9 * B, 10 * B), [(9 * B, None, B)]);
        assert_eq!(map.pieces(B, B), []);
        assert_eq!(map.cut(8 * B), vec![]);
        assert_eq!(map.cut(2 * B + 1), vec![range(13, 1), range(20, 2)]);
        assert_eq!((map.layout(0).0, map.allocated()), (vec![extent(0, 10, 3)], 3 * B));
        assert_eq!(map.cut(0), vec![range(10, 3)]);
        assert_eq!(map.take_touched(), Some((0, u64::MAX)));
        assert_eq!(map, FileMap::default());
    }

    /// Moves the first blocks of a range, at most `piece`, to the place `next`. Returns the next
    /// place.
    fn move_first(
        map: &mut FileMap,
        table: &mut [Option<u64>],
        (at, len, piece): (u64, u64, u64),
        next: u64,
    ) -> u64 {
        let Some(extent) = map.within(at * B, (at + len) * B).next() else { return next };
        let (first, count) = (extent.file / B, piece.min(extent.len / B));
        let given_up = map.punch(first * B, (first + count) * B);
        assert_eq!(given_up, [Range { len: count * B, start: extent.arena }]);
        map.insert(first * B, &[range(next, count)]);
        (0..count).for_each(|i| table[(first + i) as usize] = Some(next + i));
        next + count + 1
    }

    proptest! {
        /// Compares filling, punching, cutting and moving with a plain table of blocks.
        #[test]
        fn agrees_with_a_table(steps in proptest::collection::vec((0..4u8, 0..64u64, 1..16u64, 1..6u64), 1..60)) {
            let mut map = FileMap::default();
            let mut mirror = FileMap::default();
            let mut table: Vec<Option<u64>> = vec![None; 80];
            let mut next = 0;
            for (what, at, len, piece) in steps {
                // A copy that follows the touched ranges is equal.
                if let Some((from, to)) = map.take_touched() {
                    mirror.punch(from, to);
                    for extent in map.within(from, to) {
                        prop_assert!(mirror.is_hole(extent.file, extent.len));
                        mirror.insert(extent.file, &[Range { start: extent.arena, len: extent.len }]);
                    }
                    mirror.take_touched();
                }
                prop_assert_eq!(&map, &mirror);
                if what == 1 {
                    // The partial first and last blocks are unchanged.
                    let given_up: u64 = map.punch(at * B - u64::from(at > 0), (at + len) * B + 1).iter().map(|r| r.len / B).sum();
                    let lost = table[at as usize..(at + len) as usize].iter_mut().filter_map(Option::take).count();
                    prop_assert_eq!(given_up, lost as u64);
                    continue;
                }
                if what == 2 {
                    let given_up: u64 = map.cut(at * B).iter().map(|r| r.len / B).sum();
                    let lost = table[at as usize..].iter_mut().filter_map(Option::take).count();
                    prop_assert_eq!(given_up, lost as u64);
                    continue;
                }
                if what == 3 {
                    next = move_first(&mut map, &mut table, (at, len, piece), next);
                    continue;
                }
                for (file, want) in map.wants(at * B, (at + len) * B, 0, 0) {
                    // Allocated in pieces of at most `piece` blocks, with some gaps.
                    let mut ranges = Vec::new();
                    let mut block = file / B;
                    let mut left = want.need / B;
                    while left > 0 {
                        let now = left.min(piece);
                        ranges.push(range(next, now));
                        for i in 0..now {
                            prop_assert!(table[block as usize].is_none());
                            table[block as usize] = Some(next + i);
                            block += 1;
                        }
                        next += now + piece % 2;
                        left -= now;
                    }
                    map.insert(file, &ranges);
                }
                prop_assert!(table[at as usize..(at + len) as usize].iter().all(Option::is_some));
            }
            let mut seen: Vec<Option<u64>> = vec![None; 80];
            let (extents, complete) = map.layout(0);
            prop_assert!(complete);
            for pair in extents.windows(2) {
                prop_assert!(pair[0].file_end() <= pair[1].file);
                let joined = pair[0].file_end() == pair[1].file && pair[0].arena + pair[0].len == pair[1].arena;
                prop_assert!(!joined);
            }
            for extent in &extents {
                for i in 0..extent.len / B {
                    seen[(extent.file / B + i) as usize] = Some(extent.arena / B + i);
                }
            }
            prop_assert_eq!(&seen, &table);
            prop_assert_eq!(map.allocated() / B, table.iter().flatten().count() as u64);
        }
    }
}
