//! The space that a file loses: when it shrinks, and beyond its size at its last close.
//!
//! # Concurrency
//! As [`View`](super::view::View): under the locks of a transaction. Only ends of blocks, and space
//! that the file keeps, are zeroed here.

use rfs_proto::Errno;
use seeded_faults::seeded;
use smallvec::SmallVec;

use super::{freed_space::Ranges, view::WriteView};
use crate::{
    metadata::attr_table::ClientFields,
    space::{alloc::range::Range, file_extents::block_up},
};

impl WriteView<'_> {
    /// Gives up a file's space beyond `size`. The space up to `keep` is not given up but zeroed.
    /// `session` requested this and writes nothing there any more. Space that other sessions can
    /// reach is quarantined.
    #[inline]
    pub(in crate::dispatch) fn cut(
        &mut self,
        session: u64,
        ino: u64,
        size: u64,
        keep: u64,
    ) -> Result<(), Errno> {
        let map = self.file(ino)?;
        let keep = block_up(size).max(keep);
        let rest = seeded!(TailNotZeroed, Vec::new(), map.pieces(size, keep));
        let reaches_beyond = map.reaches_beyond(keep);
        let zeroed = self.zero_pieces(&rest)?;
        let given_up = if reaches_beyond { self.file_mut(ino)?.cut(keep) } else { Vec::new() };
        self.give_up(session, ino, &given_up, zeroed)
    }

    /// Remembers the record of a file that is about to be cut or removed, if a snapshot needs it.
    #[inline]
    pub(in crate::dispatch) fn loses(&mut self, ino: u64, slot: u32) {
        if self.store.change_log.is_active() {
            let (size, time) = (self.table.size(slot), self.table.write_time(slot));
            self.lost.push(ClientFields { ino, size, time });
        }
    }

    /// Zeroes pieces of a file. Returns true if there were any.
    ///
    /// # Errors
    /// EIO if a store does not answer. Some of the pieces may be zero.
    #[inline]
    pub(in crate::dispatch) fn zero_pieces(&self, pieces: &[(u64, Option<u64>, u64)]) -> Result<bool, Errno> {
        let mut any = false;
        for &(_, place, len) in pieces {
            if let Some(start) = place {
                self.space.zero(Range { start, len }).map_err(|_| Errno::EIO)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Gives up ranges that a file lost. `zeroed` says that pieces which it keeps were zeroed.
    #[inline]
    pub(in crate::dispatch) fn give_up(
        &mut self,
        session: u64,
        ino: u64,
        given_up: &[Range],
        zeroed: bool,
    ) -> Result<(), Errno> {
        if given_up.is_empty() && !zeroed {
            return Ok(());
        }
        // Even if no space goes: another session may have been writing to the bytes that were
        // zeroed.
        let inode = self.namespace.inodes_mut().unlogged_mut(ino)?;
        // Not logged: the next server starts with a higher generation.
        let of = (ino, inode.raise_generation());
        if !given_up.is_empty() {
            let holders = self.open_files(ino).others(session, ino);
            self.freed.space.push(Ranges { of, ranges: given_up.to_vec(), holders });
        }
        Ok(())
    }

    /// Recalls the layout of a truncated file; its layout had the generation `before`. Each session
    /// that has the file open may rely on the old size. So the recall is needed even if the file
    /// gives up no space.
    pub(in crate::dispatch) fn size_fell(
        &mut self,
        session: u64,
        ino: u64,
        before: u64,
    ) -> Result<(), Errno> {
        let inode = self.namespace.inodes_mut().unlogged_mut(ino)?;
        if inode.layout_generation == before {
            inode.raise_generation();
        }
        let of = (ino, inode.layout_generation);
        // A recall for the space recalls the layout already.
        if !self.freed.space.iter().any(|given| given.of == of) {
            let holders = self.open_files(ino).others(session, ino);
            self.freed.space.push(Ranges { of, ranges: Vec::new(), holders });
        }
        Ok(())
    }

    /// Zeroes the bytes beyond the end of a file, in its last block, where a session may have
    /// written late.
    ///
    /// A concurrent write may put bytes there before it raises the size. It reads the record after
    /// that. It finds the record open or a new layout generation, and writes again.
    pub(in crate::dispatch) fn sweep_tail(&mut self, ino: u64) {
        let Ok(inode) = self.namespace.get(ino) else { return };
        let slot = inode.slot;
        // With checksums, clients do not write.
        if self.file(ino).is_err() || self.space.bytes().are_checked() {
            return;
        }
        self.table.begin(slot);
        let size = self.table.size(slot);
        let pieces = self.file(ino).map(|map| map.pieces(size, block_up(size))).unwrap_or_default();
        let places = pieces.into_iter().filter_map(|(_, place, len)| Some(Range { start: place?, len }));
        let dirty: SmallVec<[Range; 1]> =
            places.filter(|range| self.space.is_zero(*range) == Ok(false)).collect();
        if let (false, Ok(inode)) = (dirty.is_empty(), self.namespace.inodes_mut().unlogged_mut(ino)) {
            inode.raise_generation();
            // A store that does not answer now gets no late write of a session, either.
            dirty.iter().for_each(|range| _ = self.space.zero(*range));
        }
        self.publish(ino);
    }
}
