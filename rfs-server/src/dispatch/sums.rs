//! Requests where memory has checksums: writes, which come by here, and comparing what files have with its checksums.
//!
//! Threading: as the dispatcher. A write has its inode to itself; one that has to wait for space to be zeroed lets it go and starts over. What is
//! compared is had to be read, a mebibyte at most at a time, so that what is found bad is not just being changed.

use std::collections::{BinaryHeap, HashMap};

use rfs_proto::{
    BLOCK, BadBlock, Errno, Growth, MAX_FILE_SIZE, MAX_SHOWN_PATH, ROOT_INO, Reply, Request, Verified,
    WRITE_PART, checksum::check_data,
};

use super::{
    call::Call,
    data::Attempt,
    held::Plan,
    meta::{Look, Meta, View},
    shards::{self, Mode, SHARDS},
};
use crate::{alloc::Range, bytes::Bad, namespace::Inode};

/// Blocks that one request compares at most.
const MAX_BLOCKS: u64 = 256;
/// Files that it looks at, whether there is something in them or not.
const MAX_FILES: usize = 1024;
/// Files with bad blocks in one reply: their paths have to be looked for.
const MAX_BAD_FILES: usize = 8;
/// Bad blocks in one reply, which has to fit a message with the paths of all.
const MAX_BAD: usize = 64;
/// Directories above one another that a path is looked for in.
const MAX_DEPTH: usize = 256;

/// What is written, and where.
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

/// What a comparison has come to.
#[derive(Default)]
struct Progress {
    verified: Verified,
    files: usize,
    bad_files: usize,
}

impl Progress {
    /// Blocks that it may still compare.
    fn left(&self) -> u64 {
        let bad = MAX_BAD.saturating_sub(self.verified.bad.len());
        MAX_BLOCKS.saturating_sub(self.verified.blocks).min(bad as u64)
    }

    /// Whether it goes no further than the file that it is at.
    fn is_over(&self) -> bool {
        self.files >= MAX_FILES || self.bad_files >= MAX_BAD_FILES
    }
}

/// The lowest numbers, in order.
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
    pub(super) fn answer_sums(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Write { ino, offset, check, growth, data } => {
                if data.is_empty() || data.len() > WRITE_PART {
                    return Err(Errno::EINVAL);
                }
                if check_data(data) != check {
                    log::warn!("session {session}: {} bytes for inode {ino} came damaged", data.len());
                    return Err(Errno::EBADMSG);
                }
                let end = offset.checked_add(data.len() as u64);
                end.filter(|&end| end <= MAX_FILE_SIZE).ok_or(Errno::EFBIG)?;
                self.write(session, &Write { ino, offset, growth, data })
            }
            Request::Verify { ino, offset } => self.verify(ino, offset).map(Reply::Verified),
            // The others are handled elsewhere.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn write(&self, session: u64, write: &Write<'_>) -> Result<Reply, Errno> {
        loop {
            let step = |meta: &mut Meta<'_>| {
                let written = meta.write_held(session, write)?;
                if written && meta.is_squashed() {
                    // Its client cannot say the time in the record.
                    meta.changed_by_server(session, write.ino, self.clock.now())?;
                }
                if written {
                    meta.say(self.number, &Reply::Done);
                }
                Ok::<bool, Errno>(written)
            };
            match self.locked(&[write.ino], step)? {
                true => return Ok(Reply::Done),
                false => self.space.gain_clean(),
            }
        }
    }

    /// Compares from a place on, shard by shard, and in each from the lowest inode on.
    fn verify(&self, ino: u64, offset: u64) -> Result<Verified, Errno> {
        if !self.space.bytes().are_checked() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut progress = Progress::default();
        let (mut first, mut offset) = (ino, offset / BLOCK * BLOCK);
        let begin = if ino == 0 { 0 } else { shards::place(ino) };
        for at in begin..SHARDS {
            let look = |look: &mut Look<'_>| look.verify_shard(first, offset, &mut progress);
            let next = self.store.once(Plan::shard(at), Some(self.asker), look).0;
            progress.verified.next = next;
            if next.is_some() {
                break;
            }
            (first, offset) = (0, 0);
        }
        let mut verified = progress.verified;
        let paths = self.paths(verified.bad.iter().map(|bad| bad.ino));
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

    /// A path for each of these files that has one. Takes a look at all names, until one of each is found.
    fn paths(&self, files: impl Iterator<Item = u64>) -> HashMap<u64, Vec<u8>> {
        let mut names: HashMap<u64, Option<(u64, Vec<u8>)>> = files.map(|ino| (ino, None)).collect();
        for at in 0..SHARDS {
            if names.values().all(Option::is_some) {
                break;
            }
            self.store.once(Plan::shard(at), Some(self.asker), |look: &mut Look<'_>| {
                for (&directory, inode) in &look.namespace.inodes_mut().only().inodes {
                    for (_, name, child) in inode.directory().into_iter().flat_map(|names| names.after(0)) {
                        if let Some(found @ None) = names.get_mut(&child) {
                            *found = Some((directory, name.to_vec()));
                        }
                    }
                }
            });
        }
        let path = |(ino, found): (u64, Option<(u64, Vec<u8>)>)| {
            let (directory, name) = found?;
            Some((ino, self.path(directory, name)?))
        };
        names.into_iter().filter_map(path).collect()
    }

    /// The path of a name in a directory. `None` if that is being removed.
    fn path(&self, mut directory: u64, mut path: Vec<u8>) -> Option<Vec<u8>> {
        path.insert(0, b'/');
        for _ in 0..MAX_DEPTH {
            if directory == ROOT_INO {
                break;
            }
            let parent = self.look(&[directory], |look| Some(look.directory(directory)?.parent))?;
            let name = self.look(&[parent], |look| {
                let mut names = look.directory(parent)?.after(0);
                names.find(|&(_, _, child)| child == directory).map(|(_, name, _)| name.to_vec())
            })?;
            path.splice(0..0, [b"/", &name[..]].concat());
            directory = parent;
        }
        Some(path.split_off(path.len().saturating_sub(MAX_SHOWN_PATH)))
    }
}

impl<M: Mode> View<'_, M> {
    fn directory(&self, ino: u64) -> Option<&crate::namespace::Directory> {
        self.namespace.get(ino).ok().and_then(Inode::directory)
    }

    /// Says in the log that a block of a file is bad. The error for who has met it.
    pub(super) fn bad(&self, ino: u64, bad: Bad) -> Errno {
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

impl Look<'_> {
    /// Compares what the files of the step's only shard have, from a place on. Where to go on, if that was not all.
    fn verify_shard(&mut self, first: u64, offset: u64, progress: &mut Progress) -> Option<(u64, u64)> {
        // Mostly the rest of one file is enough, and the others need not be looked for.
        if let Some(next) = self.verify_file(first, offset, progress) {
            return Some((first, next));
        }
        let inodes = &self.namespace.inodes_mut().only().inodes;
        let behind = inodes.iter().filter(|&(&ino, inode)| ino > first && inode.file().is_some());
        // One more, to go on from.
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

    /// Compares what a file has, if there is one. Where in it to go on.
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

impl Meta<'_> {
    /// Whether an append was begun before, by a server that was killed between the growth of the file and the log of that: the session still
    /// holds the end of the file, which is where this append ends, and what lies there is its data or nothing. What had not got
    /// into the log of its space is lost, and is written again.
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
            if self.space.bytes().read(Range { start, len }, &mut there).is_err() || there != part {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes for a session that cannot hold the end of the file itself, which an append needs: others append one-sidedly.
    fn write_held(&mut self, session: u64, write: &Write<'_>) -> Result<bool, Errno> {
        let appends = matches!(write.growth, Growth::From(_));
        if !self.is_squashed() || !appends {
            let begun = appends && self.was_begun(session, write)?;
            return self.write(session, write, begun);
        }
        if !self.leases(write.ino).holds(session, write.ino) {
            return Err(Errno::EBADF);
        }
        let slot = self.namespace.get(write.ino)?.slot;
        // It holds the end already if the server before was killed at this very append.
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

    /// False if there is space, but none that is zero yet.
    fn write(&mut self, session: u64, write: &Write<'_>, begun: bool) -> Result<bool, Errno> {
        let Write { ino, offset, growth, mut data } = *write;
        let end = write.end();
        if !self.leases(ino).holds(session, ino) {
            return Err(Errno::EBADF);
        }
        self.may_write(ino)?;
        let slot = self.namespace.get(ino)?.slot;
        let size = self.table.size(slot);
        if matches!(growth, Growth::From(was) if was != size) && !begun {
            return Err(Errno::EAGAIN);
        }
        self.will_write(session, ino);
        let lacks =
            |map: &crate::files::FileMap| map.pieces(offset, end).iter().any(|(_, place, _)| place.is_none());
        if lacks(self.file(ino)?) {
            // What is there can be written when nothing can be added.
            if self.store.journal.as_ref().is_some_and(|journal| journal.log().is_nearly_full()) {
                return Err(Errno::ENOSPC);
            }
            match self.try_allocate(session, ino, offset, end, true)? {
                Attempt::Done(_) => {}
                Attempt::NotClean => return Ok(false),
            }
        }
        for (_, place, len) in self.file(ino)?.pieces(offset, end) {
            // It has space by now.
            let (Some(place), Some((part, rest))) = (place, data.split_at_checked(len as usize)) else {
                return Err(Errno::EIO);
            };
            let is_nothing = rest.is_empty() && end >= size;
            self.space.write(place, part, is_nothing).map_err(|bad| self.bad(ino, bad))?;
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
        fn the_lowest_are_those_that_come_first_when_all_are_sorted(
            all in prop::collection::hash_set(0..1000u64, 0..50), most in 0..60usize,
        ) {
            let mut sorted: Vec<u64> = all.iter().copied().collect();
            sorted.sort_unstable();
            sorted.truncate(most);
            prop_assert_eq!(lowest(all.into_iter(), most), sorted);
        }
    }
}
