//! The bytes of the arena, with their checksums where the memory has them: the one place in the server that changes them.
//!
//! Each change of a block follows the order that `rfs_proto::checksum` promises to those who read beside it. What is changed in part
//! was in order before, or stays out of order: a block that has gone bad never gets a check that fits what is left of it, until it is written as a
//! whole, or zeroed.
//!
//! Threading: any thread may read. A block is changed by one thread at a time: whoever has the shard of the inode that has it, or
//! has taken it from the account while it is nobody's. Readers in other processes go by the words alone.

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
use seeded_faults::{Fault, seeded};

use crate::alloc::Range;

/// Looks at a block that others may be changing, without a pause.
const SPINS: usize = 64;
/// With pauses. Whoever changes a block has it open for microseconds, or for as long as he does not get the processor.
const PAUSES: usize = 512;
const PAUSE: Duration = Duration::from_millis(1);

/// Blocks that are named of those that nobody can tell anything of.
const NAMED: usize = 16;

/// A block as a buffer.
type Block = [u8; BLOCK as usize];

/// A block that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad {
    /// Where it begins in the arena.
    pub place: u64,
    /// The check of what was written.
    pub expected: u32,
    /// That of what is there.
    pub found: u32,
}

/// Blocks that were being changed when a server ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// All of them.
    pub open: u64,
    /// Those that are neither as they were before nor all zero: changed in part or as a whole, or damaged, which nobody can tell.
    pub unknown: u64,
    /// Where the first of those begin in the arena.
    pub places: Vec<u64>,
}

/// The bytes.
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

/// Range by range what a range has of each block: where the block begins, and the first and the last byte but one in it.
fn blocks(Range { start, len }: Range) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = start + len;
    let first = start / BLOCK * BLOCK;
    (first..end).step_by(BLOCK as usize).map(move |block| {
        // Within a block, so that it fits.
        let at = start.saturating_sub(block) as usize;
        (block, at, (end - block).min(BLOCK) as usize)
    })
}

impl Bytes {
    /// Those of an arena of whole blocks, with the words of the checksums if there are any. Memory that is all zero is in order.
    pub fn new(arena: Arc<Memory>, words: Option<Arc<Memory>>) -> Bytes {
        debug_assert!(
            words.as_ref().is_none_or(|words| words.len() as u64 >= checksum::region_len(arena.len() as u64))
        );
        Bytes { arena, words }
    }

    /// The arena itself, to look at.
    pub fn memory(&self) -> &Memory {
        &self.arena
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.arena.len() as u64
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.arena.is_empty()
    }

    /// True if there are checksums.
    pub fn are_checked(&self) -> bool {
        self.words.is_some()
    }

    /// Zeroes a range. Memory that was never touched stays so.
    pub fn zero(&self, range: Range) {
        let zero = |range: Range| {
            // Ranges lie within the arena, whose length is a usize.
            self.arena.zero_present(range.start as usize, range.len as usize);
        };
        let Some(words) = self.words.as_deref().filter(|_| !seeded(Fault::WordNotZeroed)) else {
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
            // Where the word says that it is zero it need not change.
            let others = || blocks(whole).filter(|&(block, ..)| !says_zero(load(words, block)));
            others().for_each(|(block, ..)| store(words, block, load(words, block).opened()));
            zero(whole);
            others().for_each(|(block, ..)| store(words, block, load(words, block).closed(0)));
        }
    }

    /// Zeroes a part of a block. What its word is wrong by, it is wrong by afterwards.
    fn zero_part(&self, words: &Memory, block: u64, from: usize, to: usize) {
        let mut bytes: Block = [0; BLOCK as usize];
        let word = load(words, block);
        self.read_block(word, block, &mut bytes);
        // It may be one that was never touched.
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

    /// Writes data. What is written of a block that has gone bad has to be all of it, or, if what is behind the data in its block
    /// `is_nothing`, all from its beginning on.
    ///
    /// # Errors
    /// A block is bad. It is as it was, as are those behind it.
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
        let was_bad = !word.fits(&bytes) && !seeded(Fault::MismatchIgnored);
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

    /// Reads a range, for somebody who relies on it. Nobody changes it meanwhile.
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

    /// The blocks of a range that are bad. Nobody changes them meanwhile.
    pub fn bad(&self, range: Range) -> Vec<Bad> {
        let Some(words) = self.words.as_deref() else { return Vec::new() };
        let mut bytes: Block = [0; BLOCK as usize];
        blocks(range).filter_map(|(block, ..)| self.check_block(words, block, &mut bytes).err()).collect()
    }

    fn check_block(&self, words: &Memory, block: u64, bytes: &mut Block) -> Result<(), Bad> {
        let word = load(words, block);
        self.read_block(word, block, bytes);
        match word.fits(bytes) || seeded(Fault::MismatchIgnored) {
            true => Ok(()),
            false => Err(Bad { place: block, expected: word.check(), found: check(bytes) }),
        }
    }

    /// Reads a block. Through the mapping one that was never touched would be made present, and there may be no memory left for it.
    fn read_block(&self, word: Word, block: u64, bytes: &mut Block) {
        let fd = self.arena.fd().filter(|_| word.check() == 0);
        // One system call: files are at most as large as their arena, and memory that is read does not block.
        if fd.is_none_or(|fd| pread(fd, &mut bytes[..], block) != Ok(BLOCK as usize)) {
            self.arena.read(block as usize, bytes);
        }
    }

    /// Returns true if all bytes of a range are zero. Memory that was never touched stays so.
    pub fn is_zero(&self, range: Range) -> bool {
        let mut bytes: Block = [0; BLOCK as usize];
        blocks(range).all(|(block, from, to)| {
            self.read_block(Word(0), block, &mut bytes);
            bytes[from..to].iter().all(|byte| *byte == 0)
        })
    }

    /// Looks through a copy of whole blocks that was made while others may have been changing them: what does not fit is copied again. Which
    /// are bad, or do not come to rest, and may be bad.
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
            // What was read between two looks at the same even version was at rest.
            if now == word && !word.is_open() && !word.fits(copy) {
                break;
            }
            word = now;
        }
        // If it is open all the time, only what was there before it was opened is known.
        match (word.check(), check(copy)) {
            (expected, found) if expected == found => Ok(()),
            (expected, found) => Err(Bad { place: block, expected, found }),
        }
    }

    /// What was said to be the check of a block, for one that was bad elsewhere already.
    pub fn expect(&self, block: u64, expected: u32) {
        if let Some(words) = self.words.as_deref() {
            store(words, block, load(words, block).opened().closed(expected));
        }
    }

    /// Has the words of blocks that were being changed when the server before ended say what is there.
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
            // As before the change, or all zero as after one that zeroes it.
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

/// The blocks that lie in a range as a whole.
fn whole_blocks(range: Range) -> Range {
    let (start, end) = (range.start.next_multiple_of(BLOCK), range.end() / BLOCK * BLOCK);
    Range { start, len: end.saturating_sub(start) }
}

/// Whether a word says that its block is at rest and all zero.
fn says_zero(word: Word) -> bool {
    !word.is_open() && word.check() == 0
}

fn load(words: &Memory, block: u64) -> Word {
    let word = words.atomic_u64(checksum::place(block) as usize);
    Word(u64::from_le(word.load(Ordering::SeqCst)))
}

fn store(words: &Memory, block: u64, Word(word): Word) {
    // No store to the block may be seen before the odd version or after the even one.
    std::sync::atomic::fence(Ordering::SeqCst);
    words.atomic_u64(checksum::place(block) as usize).store(word.to_le(), Ordering::SeqCst);
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
