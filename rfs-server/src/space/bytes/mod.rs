//! The bytes of the arena and their checksums; all changes of file data by the server go through
//! it.
//!
//! Each change of a block follows the order that `rfs_proto::checksum` promises to concurrent
//! readers. A bad block stays bad: after a partial change its checksum still does not match. Only a
//! write of the whole block, or zeroing, makes it good again.
//!
//! # Concurrency
//! Any thread may read. One thread changes a block at a time: it holds the shard lock of the
//! block's inode, or has taken the block from the allocator. Readers in other processes use the
//! checksum words.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use rdmabox::Memory;
use rfs_proto::{
    BLOCK,
    checksum::{self, Word, check},
};
use rustix::io::pread;
use seeded_faults::seeded;

use super::alloc::range::Range;

/// Number of rereads, without a pause, of a block that another process may be changing.
const SPINS: usize = 64;
/// Number of further rereads, with a pause each. A writer keeps a block open for microseconds, or
/// until it is scheduled again.
const PAUSES: usize = 512;
const PAUSE: Duration = Duration::from_millis(1);

/// Maximum number of blocks that a message lists.
const NAMED: usize = 16;

/// Buffer for a block.
type Block = [u8; BLOCK as usize];

/// A block whose checksum does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad {
    /// First byte of the block in the arena.
    pub place: u64,
    /// Checksum of the written data.
    pub expected: u32,
    /// Checksum of the data that was read.
    pub found: u32,
}

/// Blocks that were being changed when a server ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Number of these blocks.
    pub open: u64,
    /// Number of these blocks that are neither unchanged nor all zero. They may be changed partly
    /// or completely, or damaged.
    pub unknown: u64,
    /// First bytes, in the arena, of the first few of the unknown blocks.
    pub places: Vec<u64>,
}

/// The bytes of an arena.
#[derive(Clone, Debug)]
pub struct Bytes {
    arena: Arc<Memory>,
    words: Option<Arc<Memory>>,
}

impl From<Arc<Memory>> for Bytes {
    fn from(arena: Arc<Memory>) -> Bytes {
        Bytes { arena, words: None }
    }
}

/// Splits a range into blocks: first byte of the block, and start and end of the range's part in
/// it.
fn blocks(Range { start, len }: Range) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = start + len;
    let first = start / BLOCK * BLOCK;
    (first..end).step_by(BLOCK as usize).map(move |block| {
        // At most the length of a block, so it fits in `usize`.
        let at = start.saturating_sub(block) as usize;
        (block, at, (end - block).min(BLOCK) as usize)
    })
}

impl Bytes {
    /// Returns the bytes of an arena of whole blocks, with checksum words if there are any. Memory
    /// that is all zero is valid.
    pub fn new(arena: Arc<Memory>, words: Option<Arc<Memory>>) -> Bytes {
        debug_assert!(
            words.as_ref().is_none_or(|words| words.len() as u64 >= checksum::region_len(arena.len() as u64))
        );
        Bytes { arena, words }
    }

    /// Returns the memory of the arena, for reads.
    pub fn memory(&self) -> &Memory {
        &self.arena
    }

    /// Returns the size of the arena in bytes.
    pub fn len(&self) -> u64 {
        self.arena.len() as u64
    }

    /// Returns true if the arena is empty.
    pub fn is_empty(&self) -> bool {
        self.arena.is_empty()
    }

    /// Returns true if there are checksums.
    pub fn are_checked(&self) -> bool {
        self.words.is_some()
    }

    /// Zeroes a range. Pages that were never touched stay unallocated.
    pub fn zero(&self, range: Range) {
        let zero = |range: Range| {
            // The range lies within the arena, whose length is a `usize`.
            self.arena.zero_present(range.start as usize, range.len as usize);
        };
        let Some(words) = self.words.as_deref().filter(|_| !seeded!(WordNotZeroed)) else {
            return zero(range);
        };
        let whole = whole_blocks(range);
        let edges = [
            Range { start: range.start, len: whole.start.min(range.end()) - range.start },
            Range { start: whole.end().max(range.start), len: range.end().saturating_sub(whole.end()) },
        ];
        let edges = if whole.len == 0 { [range, Range { start: 0, len: 0 }] } else { edges };
        for (block, from, to) in edges.into_iter().filter(|edge| edge.len > 0).flat_map(blocks) {
            self.zero_part(words, block, from, to);
        }
        if whole.len > 0 {
            // A block whose checksum word stands for zeroes need not change.
            let others = || blocks(whole).filter(|&(block, ..)| !says_zero(load(words, block)));
            others().for_each(|(block, ..)| store(words, block, load(words, block).opened()));
            zero(whole);
            others().for_each(|(block, ..)| store(words, block, load(words, block).closed(0)));
        }
    }

    /// Zeroes a part of a block. A bad block stays bad by the same XOR difference.
    fn zero_part(&self, words: &Memory, block: u64, from: usize, to: usize) {
        let mut bytes: Block = [0; BLOCK as usize];
        let word = load(words, block);
        self.read_block(word, block, &mut bytes);
        // The block may never have been touched.
        if says_zero(word) && bytes == [0; BLOCK as usize] {
            return;
        }
        let before = check(&bytes);
        bytes[from..to].fill(0);
        let wrong_by = if word.is_open() { 1 } else { word.check() ^ before };
        store(words, block, word.opened());
        self.arena.zero(block as usize + from, to - from);
        store(words, block, word.closed(check(&bytes) ^ wrong_by));
    }

    /// Writes data. A bad block must be overwritten completely. If `is_nothing` (the bytes behind
    /// the data are unused), it suffices to overwrite it from its first byte to the end of the
    /// data.
    ///
    /// # Errors
    /// A block is bad. It is unchanged, as are the blocks behind it.
    pub fn write(&self, place: u64, mut data: &[u8], is_nothing: bool) -> Result<(), Bad> {
        let Some(words) = self.words.as_deref() else {
            self.arena.write(place as usize, data);
            return Ok(());
        };
        for (block, from, to) in blocks(Range { start: place, len: data.len() as u64 }) {
            let (part, rest) = data.split_at(to - from);
            self.write_part(words, block, from, part, is_nothing && rest.is_empty())?;
            data = rest;
        }
        Ok(())
    }

    fn write_part(
        &self,
        words: &Memory,
        block: u64,
        from: usize,
        data: &[u8],
        is_nothing: bool,
    ) -> Result<(), Bad> {
        let word = load(words, block);
        let change = |at: usize, data: &[u8], check| {
            store(words, block, word.opened());
            self.arena.write(block as usize + at, data);
            store(words, block, word.closed(check));
        };
        if data.len() as u64 == BLOCK {
            change(0, data, check(data));
            return Ok(());
        }
        let mut bytes: Block = [0; BLOCK as usize];
        self.arena.read(block as usize, &mut bytes);
        let was_bad = !word.fits(&bytes) && !seeded!(MismatchIgnored);
        if was_bad && !(is_nothing && from == 0) {
            return Err(Bad { place: block, expected: word.check(), found: check(&bytes) });
        }
        if was_bad {
            bytes.fill(0);
        }
        bytes[from..from + data.len()].copy_from_slice(data);
        match was_bad {
            true => change(0, &bytes, check(&bytes)),
            false => change(from, data, check(&bytes)),
        }
        Ok(())
    }

    /// Reads and verifies a range. The caller excludes writers.
    ///
    /// # Errors
    /// A block is bad.
    pub fn read(&self, range: Range, out: &mut Vec<u8>) -> Result<(), Bad> {
        out.resize(range.len as usize, 0);
        let Some(words) = self.words.as_deref() else {
            self.arena.read(range.start as usize, out);
            return Ok(());
        };
        let mut bytes: Block = [0; BLOCK as usize];
        let mut rest = &mut out[..];
        for (block, from, to) in blocks(range) {
            self.check_block(words, block, &mut bytes)?;
            let (part, behind) = rest.split_at_mut(to - from);
            part.copy_from_slice(&bytes[from..to]);
            rest = behind;
        }
        Ok(())
    }

    /// Returns the bad blocks of a range. The caller excludes writers.
    pub fn bad(&self, range: Range) -> Vec<Bad> {
        let Some(words) = self.words.as_deref() else { return Vec::new() };
        let mut bytes: Block = [0; BLOCK as usize];
        blocks(range).filter_map(|(block, ..)| self.check_block(words, block, &mut bytes).err()).collect()
    }

    fn check_block(&self, words: &Memory, block: u64, bytes: &mut Block) -> Result<(), Bad> {
        let word = load(words, block);
        self.read_block(word, block, bytes);
        match word.fits(bytes) || seeded!(MismatchIgnored) {
            true => Ok(()),
            false => Err(Bad { place: block, expected: word.check(), found: check(bytes) }),
        }
    }

    /// Reads a block. A read through the mapping would allocate a page for a block that was never
    /// touched, and memory may be short.
    fn read_block(&self, word: Word, block: u64, bytes: &mut Block) {
        let fd = self.arena.fd().filter(|_| word.check() == 0);
        // One system call suffices: the file holds the whole arena, and reads of memory are not
        // short.
        if fd.is_none_or(|fd| pread(fd, &mut bytes[..], block) != Ok(BLOCK as usize)) {
            self.arena.read(block as usize, bytes);
        }
    }

    /// Returns true if all bytes of a range are zero. Pages that were never touched stay
    /// unallocated.
    pub fn is_zero(&self, range: Range) -> bool {
        let mut bytes: Block = [0; BLOCK as usize];
        blocks(range).all(|(block, from, to)| {
            self.read_block(Word(0), block, &mut bytes);
            bytes[from..to].iter().all(|byte| *byte == 0)
        })
    }

    /// Verifies a copy of whole blocks that was made beside concurrent writers, and copies
    /// mismatching blocks again. Returns the blocks that are bad, or that were changing all the
    /// time and may be bad.
    pub fn mend(&self, start: u64, copy: &mut [u8]) -> Vec<Bad> {
        let Some(words) = self.words.as_deref() else { return Vec::new() };
        let whole = copy.chunks_exact_mut(BLOCK as usize).zip((start..).step_by(BLOCK as usize));
        whole.filter_map(|(copy, block)| self.mend_block(words, block, copy).err()).collect()
    }

    fn mend_block(&self, words: &Memory, block: u64, copy: &mut [u8]) -> Result<(), Bad> {
        let mut word = load(words, block);
        for look in 0..SPINS + PAUSES {
            if word.fits(copy) {
                return Ok(());
            }
            match look {
                0 => {}
                1..SPINS => thread::yield_now(),
                _ => thread::sleep(PAUSE),
            }
            self.arena.read(block as usize, copy);
            let now = load(words, block);
            // A block that was read between two loads of the same even version did not change.
            if now == word && !word.is_open() && !word.fits(copy) {
                break;
            }
            word = now;
        }
        // If the block was open all the time, only the checksum from before the change is known.
        match (word.check(), check(copy)) {
            (expected, found) if expected == found => Ok(()),
            (expected, found) => Err(Bad { place: block, expected, found }),
        }
    }

    /// Sets the checksum of a block that was bad at its source already.
    pub fn expect(&self, block: u64, expected: u32) {
        if let Some(words) = self.words.as_deref() {
            store(words, block, load(words, block).opened().closed(expected));
        }
    }

    /// Closes the checksum words of blocks that were being changed when the previous server ended,
    /// and makes them match the data.
    pub fn settle(&self) -> Settled {
        let mut settled = Settled::default();
        let Some(words) = self.words.as_deref() else { return settled };
        let mut bytes: Block = [0; BLOCK as usize];
        for block in (0..self.len()).step_by(BLOCK as usize) {
            let word = load(words, block);
            if !word.is_open() {
                continue;
            }
            self.read_block(word, block, &mut bytes);
            let found = check(&bytes);
            store(words, block, word.closed(found));
            settled.open += 1;
            // The block is unchanged, or completely zeroed.
            if found == word.check() || found == 0 {
                continue;
            }
            settled.unknown += 1;
            if settled.places.len() < NAMED {
                settled.places.push(block);
            }
        }
        settled
    }
}

/// Returns the whole blocks of a range.
fn whole_blocks(range: Range) -> Range {
    let (start, end) = (range.start.next_multiple_of(BLOCK), range.end() / BLOCK * BLOCK);
    Range { start, len: end.saturating_sub(start) }
}

/// Returns true if a word says that its block is closed and all zero.
fn says_zero(word: Word) -> bool {
    !word.is_open() && word.check() == 0
}

fn load(words: &Memory, block: u64) -> Word {
    let word = words.atomic_u64(checksum::place(block) as usize);
    Word(u64::from_le(word.load(Ordering::SeqCst)))
}

fn store(words: &Memory, block: u64, Word(word): Word) {
    // No store to the block may be visible before the odd version or after the even one.
    std::sync::atomic::fence(Ordering::SeqCst);
    words.atomic_u64(checksum::place(block) as usize).store(word.to_le(), Ordering::SeqCst);
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
