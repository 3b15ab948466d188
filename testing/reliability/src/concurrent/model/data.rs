//! Bytes of files in the model: reads, writes, truncation, holes and copies.

use std::{ops::Range, rc::Rc};

use libc::{EBADF, EINVAL, ENXIO};

use super::{Act, Id, Open, Resolved, State, Step};
use crate::concurrent::operation::{Outcome, Space, bytes};

/// The unit in which the file system knows holes.
const BLOCK: u64 = 4096;

impl State {
    fn size(&self, inode: Id) -> u64 {
        self.inodes[&inode].bytes.len() as u64
    }

    /// Returns the bytes of a file, to be changed.
    fn content(&mut self, inode: Id) -> &mut Vec<u8> {
        let inode = self.inodes.get_mut(&inode).expect("an object that has a handle or was resolved");
        Rc::make_mut(&mut inode.bytes)
    }

    fn put(&mut self, inode: Id, at: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (at, content) = (at as usize, self.content(inode));
        let end = at + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[at..end].copy_from_slice(bytes);
    }

    /// Writes the part in the first page, if the write spans pages. Returns its length.
    ///
    /// The kernel sends the unaligned head of a write as a separate request. An operation of
    /// another mount may get between the two requests.
    pub(super) fn write_first_page(&mut self, inode: Id, id: Id, at: u64, len: u64) -> u64 {
        let head = (BLOCK - at % BLOCK) % BLOCK;
        if head == 0 || head >= len {
            return 0;
        }
        self.put(inode, at, &bytes(id, head));
        head
    }

    /// Writes at a place, or at the end if the file is open to append.
    ///
    /// An append that found the end before another write made the file longer may go there.
    pub(super) fn write(
        &mut self,
        open: &Open,
        id: Id,
        found: Resolved,
        (at, len): (u64, u64),
    ) -> Step<Outcome> {
        if !open.write {
            return Err(EBADF);
        }
        let size = self.size(open.inode);
        let at = match (open.append, found.end) {
            (false, _) => at,
            // docs/semantics, "Appending": it may stay where the end was.
            (true, Some(end)) if end < size => end,
            (true, _) => size,
        };
        let rest = &bytes(id, len)[found.written as usize..];
        self.put(open.inode, at + found.written, rest);
        Ok(Outcome::Count(len))
    }

    /// Reads up to the end of the file.
    pub(super) fn read(&self, inode: Id, at: u64, len: u64) -> Outcome {
        let content = &self.inodes[&inode].bytes;
        let end = content.len().min((at + len) as usize);
        Outcome::Bytes(content[end.min(at as usize)..end].to_vec())
    }

    /// Changes the size.
    pub(super) fn truncate(&mut self, inode: Id, size: u64) -> Outcome {
        self.content(inode).resize(size as usize, 0);
        Outcome::Done
    }

    /// Reserves or frees space.
    pub(super) fn allocate(&mut self, inode: Id, space: Space, at: u64, len: u64) -> Outcome {
        let content = self.content(inode);
        let Range { start, end } = at as usize..(at + len) as usize;
        if matches!(space, Space::Allocate | Space::Zero) && content.len() < end {
            content.resize(end, 0);
        }
        if matches!(space, Space::Punch | Space::Zero | Space::ZeroKeep) {
            let end = end.min(content.len());
            content[start.min(end)..end].fill(0);
        }
        Outcome::Done
    }

    /// Copies from file to file, or within a file.
    ///
    /// If another mount has changed sizes, the count may be smaller. The kernel bounds a copy by
    /// the size that it knows, the server by the size that it finds.
    pub(super) fn copy(
        &mut self,
        act: Act<'_>,
        [source, target]: [&Open; 2],
        (at, to, len): (u64, u64, u64),
    ) -> Step<Outcome> {
        if !target.write || target.append {
            return Err(EBADF);
        }
        let there = self.size(source.inode).saturating_sub(at).min(len);
        let within = source.inode == target.inode;
        let overlaps = |count: u64| within && to + count > at && to < at + count;
        let count = match *act.seen {
            Outcome::Failed(EINVAL) if act.resized && overlaps(len) => return Err(EINVAL),
            Outcome::Count(count) if act.resized && count <= there => count,
            _ => there,
        };
        if overlaps(count) {
            return Err(EINVAL);
        }
        if count > 0 {
            let copied = self.inodes[&source.inode].bytes[at as usize..(at + count) as usize].to_vec();
            self.put(target.inode, to, &copied);
        }
        Ok(Outcome::Count(count))
    }

    /// Finds data or a hole. The file system knows them in blocks, and may take zeros for data.
    pub(super) fn seek(&self, inode: Id, hole: bool, at: u64, seen: &Outcome) -> Step<Outcome> {
        let content = &self.inodes[&inode].bytes;
        let size = content.len() as u64;
        if at >= size {
            return Err(ENXIO);
        }
        let zero = |from: u64, to: u64| content[from as usize..to.min(size) as usize].iter().all(|&b| b == 0);
        let right = match *seen {
            Outcome::Count(found) if hole => {
                found == size || (found >= at && found < size && zero(found, (found / BLOCK + 1) * BLOCK))
            }
            Outcome::Count(found) => found >= at && found < size && zero(at, found),
            Outcome::Failed(ENXIO) => !hole && zero(at, size),
            _ => false,
        };
        match right {
            true => match *seen {
                Outcome::Failed(error) => Err(error),
                _ => Ok(seen.clone()),
            },
            // An answer that is always right: all is data.
            false => Ok(Outcome::Count(if hole { size } else { at })),
        }
    }
}
