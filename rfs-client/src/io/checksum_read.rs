//! Reads of memory with checksums: whole blocks with their checksum words, verified here.
//!
//! A block that does not match its word may be under write, so the client reads it again. The block
//! is bad if three reads in a row find the same even version. The second read's bytes then lie
//! between two reads of an unchanged word, in any order of fetches. While versions change, or one
//! is odd, a writer is active. The reader then yields, and later sleeps. It releases the file's
//! layout every [`LAYOUT_HOLD_LIMIT`], because a truncation by another mount may wait for the
//! layout.
//!
//! # Concurrency
//! Session threads that hold the inode's `io` shared. Takes `layout_users` shared.

use std::{
    ops::{ControlFlow, Range},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

use rfs_proto::{
    BLOCK,
    checksum::{self, Word, check},
};
use smallvec::SmallVec;

use crate::{
    error::ClientError,
    inode::{
        Inode,
        layout::{Piece, is_in_arena},
        size::{LayoutId, LookStart},
        table::InodeTable,
    },
    io::buffer::room,
    remote::{Mapped, Remote, RemoteExt, address::Epoch, checksums::Checksums, records::Glimpse},
    requests::{
        TRIES,
        layouts::Layouts,
        record_reader::{ReadParts, RecordReader},
    },
};

/// Reads of one block with the same result that make it certain.
const CERTAIN_READS: u32 = 3;
/// Reads of a block under write without a pause.
const SPINS: u32 = 64;
/// Pause after that. It doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const MAX_PAUSE: Duration = Duration::from_millis(1);
/// Time for which a reader holds the layout while it waits for a block. A server that recalls the
/// layout waits for seconds.
const LAYOUT_HOLD_LIMIT: Duration = Duration::from_millis(50);

/// Checksum words of one read as they come over the network, usually of a few blocks.
type RawWords = SmallVec<[u8; 256]>;

/// A run of whole blocks of a file, in the caller's buffer.
#[derive(Clone, Copy, Debug)]
struct Run {
    arena: u64,
    /// Offset in the buffer.
    at: usize,
    len: usize,
}

/// Usually one or two runs.
type Runs = SmallVec<[Run; 4]>;

/// The outcome of a read.
pub(crate) enum ReadOutcome {
    /// Range of the bytes in the buffer.
    Bytes(Range<usize>),
    /// The file has changed. The read begins anew.
    Changed,
    /// The block at this offset of the file stays under write.
    BeingWritten(u64),
}

/// State of a block that did not match its word.
enum BlockState {
    Fits,
    Bad(Word),
    BeingWritten,
}

/// Tells a bad block from a block under write.
#[derive(Debug, Default)]
struct MismatchStreak {
    last: Option<Word>,
    same: u32,
}

impl MismatchStreak {
    /// Notes a read that does not match its word. Returns true if the block is certainly bad.
    fn note_mismatch(&mut self, word: Word) -> bool {
        self.same = match self.last {
            Some(last) if last == word && !word.is_open() => self.same + 1,
            _ => 1,
        };
        self.last = Some(word);
        !word.is_open() && self.same >= CERTAIN_READS
    }
}

/// Returns the range of the word, among the words of a read, of the block at `at` of the buffer.
fn word_at(at: usize) -> Range<usize> {
    let first = checksum::place(at as u64) as usize;
    first..first + checksum::LEN as usize
}

fn word_of(words: &[u8], at: usize) -> Word {
    let mut word = [0; checksum::LEN as usize];
    word.copy_from_slice(&words[word_at(at)]);
    Word(u64::from_le_bytes(word))
}

/// Reads whole blocks with their checksum words, and verifies them.
#[derive(Debug)]
pub(crate) struct CheckedReads {
    remote: Arc<dyn Remote>,
    inodes: Arc<InodeTable>,
    records: Arc<RecordReader>,
    layouts: Arc<Layouts>,
    sums: Checksums,
    /// Local mapping of the arena, if the provider maps it.
    arena_map: Option<Mapped>,
    /// Limit of a wait for a block under write.
    wait_limit: Duration,
}

impl CheckedReads {
    pub(crate) fn new(
        layouts: &Arc<Layouts>,
        sums: Checksums,
        arena_map: Option<Mapped>,
        wait_limit: Duration,
    ) -> CheckedReads {
        let (calls, records) = (&layouts.calls, Arc::clone(&layouts.records));
        let (remote, inodes) = (Arc::clone(&calls.remote), Arc::clone(&calls.caching.inodes));
        let layouts = Arc::clone(layouts);
        CheckedReads { remote, inodes, records, layouts, sums, arena_map, wait_limit }
    }

    /// Reads up to `end` into `buffer` and verifies the blocks. Returns the range of the bytes in
    /// `buffer`.
    pub(crate) fn read(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        (offset, end): (u64, u64),
        buffer: &mut Vec<u8>,
    ) -> Result<Range<usize>, ClientError> {
        let (mut changes, mut give_up) = (0, None);
        while changes < TRIES {
            let _places = inode.layout_users.read();
            let accept = changes + 1 == TRIES;
            let try_it = || self.try_read(inode, (offset, end), buffer, accept);
            match self.layouts.retry_in_new_epoch(inode, issued_epoch, try_it)? {
                ReadOutcome::Bytes(bytes) => return Ok(bytes),
                ReadOutcome::Changed => changes += 1,
                ReadOutcome::BeingWritten(block) => {
                    // No writer takes this long for one block without letting readers see it.
                    let now = Instant::now();
                    if now >= *give_up.get_or_insert(now + self.wait_limit) {
                        return Err(ClientError::BeingWritten { ino: inode.ino, offset: block });
                    }
                }
            }
        }
        Err(ClientError::Unstable)
    }

    /// Reads once, while the caller holds `layout_users`. With `accept`, takes an end of file that
    /// may have moved during the read.
    fn try_read(
        &self,
        inode: &Inode,
        (offset, end): (u64, u64),
        buffer: &mut Vec<u8>,
        accept: bool,
    ) -> Result<ReadOutcome, ClientError> {
        let start = self.records.before_look();
        // The layout comes before the pieces. A layout that replaces it in between is detected
        // below.
        let (known, layout) = inode.known();
        let mut size = known.guess();
        let generation = layout.generation;
        // A mapped record is read first. Otherwise the record comes with the bytes, and not every
        // time.
        let mapped = self.records.is_mapped();
        if mapped {
            let now = self.records.look(inode)?;
            if generation != now.generation {
                self.layouts.follow_generation(inode, now.generation)?;
                return Ok(ReadOutcome::Changed);
            }
            size = now.size;
        }
        let looks = !(mapped || known.reaches(layout, end, self.inodes.recalls().now()));
        let first = offset / BLOCK * BLOCK;
        let stop = end.min(size);
        let now = if stop > offset {
            let record = looks.then_some((inode, start));
            match self.read_blocks(inode, layout, (first, stop), record, buffer)? {
                ControlFlow::Continue(now) => now,
                ControlFlow::Break(outcome) => return Ok(outcome),
            }
        } else {
            looks.then(|| self.records.look(inode)).transpose()?
        };
        if let Some(now) = now {
            if now.generation != generation {
                self.layouts.follow_generation(inode, now.generation)?;
                return Ok(ReadOutcome::Changed);
            }
            if now.size > size && end > size && !accept {
                return Ok(ReadOutcome::Changed);
            }
            size = size.min(now.size);
        }
        let skip = (offset - first) as usize;
        Ok(ReadOutcome::Bytes(match end.min(size).saturating_sub(offset) as usize {
            0 => 0..0,
            len => skip..skip + len,
        }))
    }

    /// Reads the blocks from `first` up to the one with the byte before `stop` into `buffer`, and
    /// verifies them. With `record`, also returns the record behind them. Breaks if the read ends
    /// here.
    fn read_blocks(
        &self,
        inode: &Inode,
        layout: LayoutId,
        (first, stop): (u64, u64),
        record: Option<(&Inode, LookStart)>,
        buffer: &mut Vec<u8>,
    ) -> Result<ControlFlow<ReadOutcome, Option<Glimpse>>, ClientError> {
        let behind = stop.checked_next_multiple_of(BLOCK);
        let len = behind.ok_or(ClientError::Protocol("a file without end"))? - first;
        let (pieces, found) = self.layouts.readable(inode, first, len)?;
        if found != layout {
            return Ok(ControlFlow::Break(ReadOutcome::Changed));
        }
        let buffer = room(buffer, len as usize);
        let mut runs = Runs::new();
        let mut at = 0;
        for piece in pieces {
            let len = piece.len() as usize;
            match piece {
                Piece::Data { arena, .. } if is_in_arena(arena) => runs.push(Run { arena, at, len }),
                Piece::Data { .. } => return Err(ClientError::Protocol("checksums of a store")),
                Piece::Hole { .. } => buffer[at..at + len].fill(0),
            }
            at += len;
        }
        let mut words = RawWords::from_elem(0, checksum::region_len(len) as usize);
        let now = self.fetch(layout.epoch, &runs, (buffer, &mut words), record)?;
        let blocks = (&mut *buffer, &words[..]);
        Ok(match self.verify_runs(inode, layout, first, &runs, blocks)? {
            Some(outcome) => ControlFlow::Break(outcome),
            None => ControlFlow::Continue(now),
        })
    }

    /// Verifies the blocks of runs in a buffer that begins at `first` of the file. Reads a block
    /// that does not match its word again. Returns the outcome of the read if it ends here.
    fn verify_runs(
        &self,
        inode: &Inode,
        LayoutId { epoch, generation }: LayoutId,
        first: u64,
        runs: &[Run],
        (buffer, words): (&mut [u8], &[u8]),
    ) -> Result<Option<ReadOutcome>, ClientError> {
        for run in runs {
            for at in (run.at..run.at + run.len).step_by(BLOCK as usize) {
                let block = &mut buffer[at..at + BLOCK as usize];
                let word = word_of(words, at);
                if word.fits(block) {
                    continue;
                }
                let run = Run { arena: run.arena + (at - run.at) as u64, at: 0, len: BLOCK as usize };
                let offset = first + at as u64;
                match self.reread_block(epoch, run, block, word)? {
                    BlockState::Fits => {}
                    BlockState::Bad(word) => {
                        let found = (word, run.arena);
                        return self.report_bad_block(inode, generation, offset, found, block).map(Some);
                    }
                    BlockState::BeingWritten => {
                        let changed = self.has_changed(inode, generation)?;
                        let outcome =
                            if changed { ReadOutcome::Changed } else { ReadOutcome::BeingWritten(offset) };
                        return Ok(Some(outcome));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Fetches runs of blocks and their words, without verifying them. With `record`, also reads
    /// the record, in the same list behind them.
    fn fetch(
        &self,
        epoch: Epoch,
        runs: &[Run],
        (buffer, words): (&mut [u8], &mut [u8]),
        record: Option<(&Inode, LookStart)>,
    ) -> Result<Option<Glimpse>, ClientError> {
        if let Some((arena, map)) = self.arena_map.as_ref().zip(self.sums.map.as_ref()) {
            self.remote.ready()?;
            for run in runs {
                // Layouts lie inside the arena (checked), and the arena and its words are mapped
                // whole.
                arena.memory.read(arena.offset + run.arena as usize, &mut buffer[run.at..run.at + run.len]);
                fence(Ordering::SeqCst);
                for at in (run.at..run.at + run.len).step_by(BLOCK as usize) {
                    let place = checksum::place(run.arena + (at - run.at) as u64) as usize;
                    let word = map.memory.load_u64(map.offset + place);
                    words[word_at(at)].copy_from_slice(&word.to_le_bytes());
                }
            }
            return record.map(|(inode, _)| self.records.look(inode)).transpose();
        }
        let mut parts = ReadParts::new();
        let (mut at, mut data, mut checks) = (0, buffer, words);
        for run in runs {
            let (_, behind) = data.split_at_mut(run.at - at);
            let (_, words_behind) = checks.split_at_mut(word_at(run.at).start - word_at(at).start);
            let (block, behind) = behind.split_at_mut(run.len);
            let (word, words_behind) = words_behind.split_at_mut(word_at(run.len).start);
            (at, data, checks) = (run.at + run.len, behind, words_behind);
            parts.push((self.sums.place(epoch, run.arena, run.len as u64)?, word));
            parts.push((self.layouts.place(epoch, run.arena, run.len as u64)?, block));
        }
        let Some((inode, start)) = record else {
            self.remote.read(&mut parts)?;
            return Ok(None);
        };
        self.records.read_and_look(inode, parts, start).map(Some)
    }

    /// Reads one block until it matches its word, is certainly bad, or [`LAYOUT_HOLD_LIMIT`] has
    /// passed.
    fn reread_block(
        &self,
        epoch: Epoch,
        run: Run,
        block: &mut [u8],
        mut word: Word,
    ) -> Result<BlockState, ClientError> {
        let mut mismatches = MismatchStreak::default();
        let give_up = Instant::now() + self.wait_limit.min(LAYOUT_HOLD_LIMIT);
        let (mut tries, mut pause) = (0, FIRST_PAUSE);
        while !mismatches.note_mismatch(word) {
            if tries > SPINS {
                if Instant::now() >= give_up {
                    return Ok(BlockState::BeingWritten);
                }
                thread::sleep(pause);
                pause = (pause * 2).min(MAX_PAUSE);
            } else if tries > 1 {
                thread::yield_now();
            }
            tries += 1;
            let mut raw = [0; checksum::LEN as usize];
            self.fetch(epoch, &[run], (&mut *block, &mut raw), None)?;
            word = Word(u64::from_le_bytes(raw));
            if word.fits(block) {
                return Ok(BlockState::Fits);
            }
        }
        Ok(BlockState::Bad(word))
    }

    /// Returns true if the file has a new layout, which is fetched then.
    fn has_changed(&self, inode: &Inode, generation: u64) -> Result<bool, ClientError> {
        let now = self.records.look(inode)?.generation;
        if now != generation {
            self.layouts.follow_generation(inode, now)?;
        }
        Ok(now != generation)
    }

    /// Reports a bad block, unless the file does not have the block any more.
    fn report_bad_block(
        &self,
        inode: &Inode,
        generation: u64,
        offset: u64,
        (word, arena): (Word, u64),
        block: &[u8],
    ) -> Result<ReadOutcome, ClientError> {
        if self.has_changed(inode, generation)? {
            return Ok(ReadOutcome::Changed);
        }
        let (expected, found) = (word.check(), check(block));
        let bad = ClientError::Bad { ino: inode.ino, offset, arena, expected, found };
        log::error!("{bad}");
        Err(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block under write is not bad, regardless of the time.
    #[test]
    fn three_reads_of_the_same_even_version_are_certain() {
        let certain = |words: &[(u32, u32)]| {
            let mut mismatches = MismatchStreak::default();
            let words = words.iter().map(|&(check, version)| Word::new(check, version));
            words.map(|word| mismatches.note_mismatch(word)).collect::<Vec<bool>>()
        };
        assert_eq!(certain(&[(7, 2), (7, 2), (7, 2)]), [false, false, true]);
        assert_eq!(certain(&[(7, 3); 9]), [false; 9]);
        assert_eq!(certain(&[(7, 2), (7, 2), (7, 4), (7, 4), (7, 4)]), [false, false, false, false, true]);
        assert_eq!(certain(&[(7, 2), (7, 3), (7, 2), (7, 2)]), [false; 4]);
    }
}
