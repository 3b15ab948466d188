//! Writes and scrubs of files in memory with checksums.
//!
//! With checksums, clients send their data to the server, which writes it and updates the
//! checksums. A scrub compares the blocks of files with their checksums.
//!
//! # Concurrency
//! As the dispatcher. A write locks its inode exclusively; if it has to wait for clean space, it
//! releases the inode and starts again. A scrub locks a shard shared, for at most 1 MiB of
//! blocks. So no block changes while it is compared.

use std::collections::BinaryHeap;

use rfs_proto::{
    BLOCK, BadBlock, Errno, Growth, MAX_FILE_SIZE, Reply, Request, Verified, WRITE_PART, checksum::check_data,
};

use super::data::Attempt;
use crate::{
    dispatch::{
        state::shards::{self, Mode, SHARDS},
        transaction::{
            call::Call,
            locked_inodes::Plan,
            view::{ReadView, View, WriteView},
        },
    },
    metadata::namespace::inode::Inode,
    space::{alloc::range::Range, bytes::Bad, lent_memory::Unusable},
};

/// The most blocks that one request compares.
const MAX_BLOCKS: u64 = 256;
/// The most files that one request looks at, with or without data.
const MAX_FILES: usize = 1024;
/// The most files with bad blocks in one reply: the server has to search their paths.
const MAX_BAD_FILES: usize = 8;
/// The most bad blocks in one reply, which has to fit a message with all paths.
const MAX_BAD: usize = 64;

/// A write request.
struct Write<'a> {
    ino: u64,
    offset: u64,
    growth: Growth,
    data: &'a [u8],
}

impl Write<'_> {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// The progress of a scrub request.
#[derive(Default)]
struct Progress {
    verified: Verified,
    files: usize,
    bad_files: usize,
}

impl Progress {
    /// Returns how many more blocks the request may compare.
    fn left(&self) -> u64 {
        let bad = MAX_BAD.saturating_sub(self.verified.bad.len());
        MAX_BLOCKS.saturating_sub(self.verified.blocks).min(bad as u64)
    }

    /// Returns whether the request ends after the current file.
    fn is_over(&self) -> bool {
        self.files >= MAX_FILES || self.bad_files >= MAX_BAD_FILES
    }
}

/// Returns the `most` lowest numbers, in order.
fn lowest(all: impl Iterator<Item = u64>, most: usize) -> Vec<u64> {
    let mut kept = BinaryHeap::new();
    for one in all {
        if kept.len() < most {
            kept.push(one);
        } else if let Some(mut last) = kept.peek_mut()
            && one < *last
        {
            *last = one;
        }
    }
    kept.into_sorted_vec()
}

impl Call<'_> {
    pub(in crate::dispatch) fn answer_sums(
        &self,
        session: u64,
        request: Request<'_>,
    ) -> Result<Reply, Errno> {
        match request {
            Request::Write { ino, offset, check, growth, data } => {
                if data.is_empty() || data.len() > WRITE_PART {
                    return Err(Errno::EINVAL);
                }
                if check_data(data) != check {
                    log::warn!("session {session}: {} bytes for inode {ino} arrived damaged", data.len());
                    return Err(Errno::EBADMSG);
                }
                let end = offset.checked_add(data.len() as u64);
                end.filter(|&end| end <= MAX_FILE_SIZE).ok_or(Errno::EFBIG)?;
                self.write(session, &Write { ino, offset, growth, data })
            }
            Request::Verify { ino, offset } => self.verify(ino, offset).map(Reply::Verified),
            // Other modules handle the other requests.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn write(&self, session: u64, write: &Write<'_>) -> Result<Reply, Errno> {
        loop {
            let step = |meta: &mut WriteView<'_>| {
                let written = meta.write_held(session, write)?;
                if written && meta.is_squashed() {
                    // A client with a squash cannot write the time into the record.
                    meta.changed_by_server(session, write.ino, self.clock.now())?;
                }
                if written {
                    meta.set_reply(self.number, &Reply::Done);
                }
                Ok::<bool, Errno>(written)
            };
            match self.locked(&[write.ino], step)? {
                true => return Ok(Reply::Done),
                false => self.space.gain_clean(),
            }
        }
    }

    /// Scrubs from a position on, shard by shard, and in each shard by inode number.
    fn verify(&self, ino: u64, offset: u64) -> Result<Verified, Errno> {
        if !self.space.bytes().are_checked() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut progress = Progress::default();
        let (mut first, mut offset) = (ino, offset / BLOCK * BLOCK);
        let begin = if ino == 0 { 0 } else { shards::place(ino) };
        for at in begin..SHARDS {
            let look = |look: &mut ReadView<'_>| look.verify_shard(first, offset, &mut progress);
            let next = self.store.transact(Plan::shard(at), Some(self.asker), look).0;
            progress.verified.next = next;
            if next.is_some() {
                break;
            }
            (first, offset) = (0, 0);
        }
        let mut verified = progress.verified;
        let paths = self.store.paths(verified.bad.iter().map(|bad| bad.ino));
        for bad in &mut verified.bad {
            bad.path = paths.get(&bad.ino).cloned().unwrap_or_default();
            log::error!(
                "inode {} ({}): the block at {}, at {} in the arena, is bad: its check is {:08x}, not {:08x}",
                bad.ino,
                String::from_utf8_lossy(&bad.path),
                bad.offset,
                bad.arena,
                bad.found,
                bad.expected
            );
        }
        Ok(verified)
    }
}

impl<M: Mode> View<'_, M> {
    /// Logs a bad block of a file. Returns the error for the request that found it.
    pub(in crate::dispatch) fn bad(&self, ino: u64, bad: Bad) -> Errno {
        let Bad { place, expected, found } = bad;
        let mut extents = self.file(ino).into_iter().flat_map(|map| map.extents());
        let extent = extents.find(|extent| (extent.arena..extent.arena + extent.len).contains(&place));
        let offset = extent.map(|extent| extent.file + (place - extent.arena));
        log::error!(
            "inode {ino}: the block at {offset:?}, at {place} in the arena, is bad: its check is {found:08x}, not {expected:08x}"
        );
        Errno::EIO
    }
}

impl ReadView<'_> {
    /// Scrubs the files of the transaction's only shard, from a position on. Returns the next
    /// position if it stopped early.
    fn verify_shard(&mut self, first: u64, offset: u64, progress: &mut Progress) -> Option<(u64, u64)> {
        // Often the rest of one file fills the request, and the shard need not be scanned.
        if let Some(next) = self.verify_file(first, offset, progress) {
            return Some((first, next));
        }
        let inodes = &self.namespace.inodes_mut().only().inodes;
        let behind = inodes.iter().filter(|&(&ino, inode)| ino > first && inode.file().is_some());
        // One more file, as the next position.
        let files = lowest(behind.map(|(&ino, _)| ino), MAX_FILES.saturating_sub(progress.files) + 1);
        for ino in files {
            if progress.is_over() {
                return Some((ino, 0));
            }
            if let Some(next) = self.verify_file(ino, 0, progress) {
                return Some((ino, next));
            }
        }
        None
    }

    /// Scrubs a file, if the inode is a file. Returns the next offset if it stopped early.
    fn verify_file(&mut self, ino: u64, offset: u64, progress: &mut Progress) -> Option<u64> {
        let bytes = self.space.bytes();
        let map = self.namespace.inodes_mut().only().inodes.get(&ino).and_then(Inode::file)?;
        progress.files += 1;
        let good = progress.verified.bad.len();
        for extent in map.within(offset, u64::MAX) {
            let mut done = 0;
            while done < extent.len {
                let left = progress.left();
                if left == 0 {
                    return Some(extent.file + done);
                }
                let range = Range { start: extent.arena + done, len: (left * BLOCK).min(extent.len - done) };
                progress.verified.blocks += range.len / BLOCK;
                let bad = bytes.bad(range).into_iter().map(|Bad { place, expected, found }| {
                    let offset = extent.file + (place - extent.arena);
                    BadBlock { ino, offset, arena: place, expected, found, path: Vec::new() }
                });
                progress.verified.bad.extend(bad);
                done += range.len;
            }
        }
        progress.bad_files += usize::from(progress.verified.bad.len() > good);
        None
    }
}

impl WriteView<'_> {
    /// Returns whether a killed server had begun this append: it had raised the size, but had not
    /// logged the request.
    ///
    /// Then the session still holds the end of the file, and this append ends there. The bytes of
    /// its range are its data or a hole. Space that was not logged is lost, so the caller writes
    /// the data again.
    fn was_begun(&self, session: u64, write: &Write<'_>) -> Result<bool, Errno> {
        let Write { ino, offset, mut data, .. } = *write;
        let slot = self.namespace.get(ino)?.slot;
        if self.table.size(slot) != write.end() || self.table.appends(slot) != Some(session) {
            return Ok(false);
        }
        let mut there = Vec::new();
        for (_, place, len) in self.file(ino)?.pieces(offset, write.end()) {
            let Some((part, rest)) = data.split_at_checked(len as usize) else { return Ok(false) };
            data = rest;
            let Some(start) = place else { continue };
            if self.space.read(Range { start, len }, &mut there).is_err() || there != part {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes for a session that cannot take the end of the file itself. An append needs the end,
    /// because other clients append one-sidedly.
    fn write_held(&mut self, session: u64, write: &Write<'_>) -> Result<bool, Errno> {
        let appends = matches!(write.growth, Growth::From(_));
        if !self.is_squashed() || !appends {
            let begun = appends && self.was_begun(session, write)?;
            return self.write(session, write, begun);
        }
        if !self.open_files(write.ino).holds(session, write.ino) {
            return Err(Errno::EBADF);
        }
        let slot = self.namespace.get(write.ino)?.slot;
        // The session holds the end already if the previous server was killed during this append.
        let begun = self.table.appends(slot) == Some(session) && self.was_begun(session, write)?;
        if self.table.appends(slot) != Some(session) && !self.table.take_end(slot, session) {
            return Err(Errno::EAGAIN);
        }
        let written = self.write(session, write, begun);
        if !matches!(written, Ok(false)) {
            self.table.end_append(slot, session);
        }
        written
    }

    /// Writes data. Returns false if there is space but none of it is zeroed yet.
    fn write(&mut self, session: u64, write: &Write<'_>, begun: bool) -> Result<bool, Errno> {
        let Write { ino, offset, growth, mut data } = *write;
        let end = write.end();
        if !self.open_files(ino).holds(session, ino) {
            return Err(Errno::EBADF);
        }
        self.may_write(ino)?;
        let slot = self.namespace.get(ino)?.slot;
        let size = self.table.size(slot);
        if matches!(growth, Growth::From(was) if was != size) && !begun {
            return Err(Errno::EAGAIN);
        }
        self.will_write(session, ino);
        let lacks = |map: &crate::space::file_extents::FileMap| {
            map.pieces(offset, end).iter().any(|(_, place, _)| place.is_none())
        };
        if lacks(self.file(ino)?) {
            // With a nearly full log, a write to existing space still succeeds.
            if self.store.journal.as_ref().is_some_and(|journal| journal.log().is_nearly_full()) {
                return Err(Errno::ENOSPC);
            }
            match self.try_allocate(session, ino, offset, end, true)? {
                Attempt::Done(_) => {}
                Attempt::NotClean => return Ok(false),
            }
        }
        for (_, place, len) in self.file(ino)?.pieces(offset, end) {
            // All space is allocated by now.
            let (Some(place), Some((part, rest))) = (place, data.split_at_checked(len as usize)) else {
                return Err(Errno::EIO);
            };
            let is_nothing = rest.is_empty() && end >= size;
            self.space.write(place, part, is_nothing).map_err(|error| match error {
                Unusable::Bad(bad) => self.bad(ino, bad),
                Unusable::Store(_) => Errno::EIO,
            })?;
            data = rest;
        }
        if growth != Growth::Stay {
            self.table.raise_size(slot, end);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::lowest;

    proptest! {
        #[test]
        fn the_lowest_numbers_are_the_first_after_sorting(
            all in prop::collection::hash_set(0..1000u64, 0..50), most in 0..60usize,
        ) {
            let mut sorted: Vec<u64> = all.iter().copied().collect();
            sorted.sort_unstable();
            sorted.truncate(most);
            prop_assert_eq!(lowest(all.into_iter(), most), sorted);
        }
    }
}
