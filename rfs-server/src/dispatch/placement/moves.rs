//! Moves data of a file away from a store while sessions read and write it.
//!
//! A file whose data moves has an odd layout generation. A session with such a layout reads the
//! record after each read and write, and repeats it if the generation has changed. The order is:
//!
//! 1. [`begin_move`](Placement::begin_move) makes the generation odd and recalls the layout. The
//!    caller waits for the acknowledgements, so that each session reads the record from then on.
//! 2. [`move_piece`](Placement::move_piece) opens the record, copies a piece, names its new place,
//!    and closes the record with the next odd generation. If a session reads the old generation
//!    after its write, the write came before the copy. Another write is repeated at the new place.
//! 3. [`end_move`](Placement::end_move) makes the generation even. The old place stays in
//!    quarantine until each session has acknowledged its recall.
//!
//! # Concurrency
//! One thread for a file. A transaction copies at most 256 KiB, under the lock of the file's shard.

use rfs_proto::{DataPlace, Errno, Extent};

use super::Placement;
use crate::{
    coherence::recall_queue::Need,
    dispatch::{
        state::shards::SHARDS,
        transaction::{
            freed_space::Ranges,
            locked_inodes::Plan,
            view::{ReadView, WriteView},
        },
    },
    session::registry::NO_SESSION,
    space::{
        alloc::{Short, Want, range::Range},
        file_extents::FileMap,
        lent_memory::{StoreFailure, Unusable},
    },
};

/// Bytes that one transaction copies at most.
const STEP: u64 = 256 << 10;

/// The outcome of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// So many bytes have a new place. The sessions have recalls to acknowledge.
    Bytes(u64, Vec<Need>),
    /// The file has nothing in the store any more, or is gone.
    Done,
    /// Space has to be zeroed first.
    NotClean,
    /// No other store has space.
    Full,
    /// A store does not answer.
    Unreachable(u16),
}

impl Placement<'_> {
    /// Returns the inodes of the files that have data in a store, in order.
    pub fn inodes_in(self, store: u16) -> Vec<u64> {
        let mut all = Vec::new();
        for at in 0..SHARDS {
            self.store.transact(Plan::shard(at), None, |look: &mut ReadView<'_>| {
                let inodes = look.namespace.inodes_mut().only().inodes.iter();
                let is_there = |inode: &&crate::metadata::namespace::inode::Inode| {
                    inode.file().is_some_and(|map| first_in(map, store).is_some())
                };
                all.extend(inodes.filter(|(_, inode)| is_there(inode)).map(|(&ino, _)| ino));
            });
        }
        all.sort_unstable();
        all
    }

    /// Tells all sessions that have a file open that its data will move. Returns the recalls whose
    /// acknowledgement the caller awaits.
    pub fn begin_move(self, ino: u64) -> Vec<Need> {
        self.store.transact(Plan::new(&[ino]), None, |meta: &mut WriteView<'_>| meta.begin_move(ino)).1
    }

    /// Removes the recalls that are acknowledged. Returns true if none is left. A session that was
    /// given up counts until no store admits it: it may still write to the places that it knows.
    pub fn are_acknowledged(self, needs: &mut Vec<Need>) -> bool {
        let mut given_up = Vec::new();
        self.store.pending.locked(|state| {
            needs.retain(|&need| {
                if !state.recalls.has_queue(need.session) {
                    given_up.push(need);
                }
                state.recalls.is_open(need)
            });
        });
        let lent = self.store.space.lent();
        given_up.retain(|need| lent.is_some_and(|lent| lent.is_admitted(need.session)));
        needs.append(&mut given_up);
        needs.is_empty()
    }

    /// Moves a piece of a file out of a store. The recalls of [`begin_move`](Self::begin_move) are
    /// acknowledged.
    pub fn move_piece(self, ino: u64, store: u16, buffer: &mut Vec<u8>) -> Moved {
        let step = |meta: &mut WriteView<'_>| meta.move_piece(ino, store, buffer);
        let (moved, needs) = self.store.transact(Plan::new(&[ino]), None, step);
        self.store.space.tidy();
        match moved {
            Moved::Bytes(bytes, _) => Moved::Bytes(bytes, needs),
            Moved::NotClean => {
                self.store.space.gain_clean();
                Moved::NotClean
            }
            other => other,
        }
    }

    /// Ends the move of a file's data.
    pub fn end_move(self, ino: u64) {
        self.store.transact(Plan::new(&[ino]), None, |meta: &mut WriteView<'_>| meta.end_move(ino));
    }
}

/// Returns the first extent of a file in a store.
fn first_in(map: &FileMap, store: u16) -> Option<Extent> {
    map.extents().find(|extent| DataPlace::from_number(extent.arena).store() == store)
}

impl WriteView<'_> {
    fn begin_move(&mut self, ino: u64) {
        let Ok(inode) = self.namespace.inodes_mut().unlogged_mut(ino) else { return };
        inode.begin_move();
        let of = (ino, inode.layout_generation);
        let holders = self.open_files(ino).others(NO_SESSION, ino);
        self.freed.space.push(Ranges { of, ranges: Vec::new(), holders });
        self.publish(ino);
    }

    fn end_move(&mut self, ino: u64) {
        let Ok(inode) = self.namespace.inodes_mut().unlogged_mut(ino) else { return };
        if inode.end_move() {
            self.publish(ino);
        }
    }

    fn move_piece(&mut self, ino: u64, store: u16, buffer: &mut Vec<u8>) -> Moved {
        let Ok((slot, extent, hint)) = self.piece_in(ino, store) else { return Moved::Done };
        let Some(Extent { file, arena, len }) = extent else { return Moved::Done };
        let len = len.min(STEP);
        let granted = match self.space.allocate(&[Want { need: len, ahead: 0, hint, file, shift: ino }]) {
            Ok(granted) => granted.concat(),
            Err(Short::Dirty) => return Moved::NotClean,
            Err(Short::Full) => return Moved::Full,
        };
        // From here on, no session takes the generation for the current one.
        self.table.begin(slot);
        let outcome = self.copy_piece(arena, &granted, buffer).map_err(|unusable| match unusable {
            Unusable::Store(StoreFailure(store)) => Moved::Unreachable(store),
            // There are no checksums with stores.
            Unusable::Bad(_) => Moved::Unreachable(0),
        });
        if let Err(failed) = outcome {
            // No session knows the new space.
            self.freed.space.push(Ranges { of: (ino, 0), ranges: granted, holders: Vec::new() });
            self.publish(ino);
            return failed;
        }
        let Ok(map) = self.file_mut(ino) else { return Moved::Done };
        let given_up = map.punch(file, file + len);
        map.insert(file, &granted);
        // The inode exists, so this cannot fail.
        let _ = self.give_up(NO_SESSION, ino, &given_up, false);
        self.publish(ino);
        Moved::Bytes(len, Vec::new())
    }

    /// Returns the slot of a file, its first extent in a store, and the place behind the extent
    /// that precedes it in the file.
    fn piece_in(&self, ino: u64, store: u16) -> Result<(u32, Option<Extent>, Option<u64>), Errno> {
        let slot = self.namespace.get(ino)?.slot;
        let map = self.file(ino)?;
        let extent = first_in(map, store);
        let before = extent.and_then(|extent| {
            let last = extent.file.checked_sub(1)?;
            map.within(last, extent.file).next()
        });
        Ok((slot, extent, before.map(|before| before.arena + before.len)))
    }

    fn copy_piece(&self, mut from: u64, to: &[Range], buffer: &mut Vec<u8>) -> Result<(), Unusable> {
        for range in to {
            self.space.copy(Range { start: from, len: range.len }, range.start, buffer)?;
            from += range.len;
        }
        Ok(())
    }
}
