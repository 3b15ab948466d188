//! Append-only log of transactions, in one of two segments of the state file.
//!
//! The first word of a transaction is a checksum of its content, its number and its segment. It is
//! stored last, so [`Log::open`] ignores a transaction that a killed server left incomplete. One
//! lock protects the end of the log: it leaves no gap before a later transaction, and a transaction
//! that depends on another follows it. When a segment grows long, [`Log::exchange`] switches to the
//! other one, and the compactor describes every inode there while requests go on. Until
//! [`Op::Complete`], recovery reads both segments, the older one first.
//! docs/design/server/formats.md has the limits.
//!
//! # Concurrency
//! Any thread. The lock `tail` comes before `signal`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use parking_lot::{Condvar, Mutex};
use rdmabox::Memory;
use rfs_proto::BLOCK;
use seeded_faults::seeded;

use super::{
    hash::{hash, words},
    header::Shape,
    op::{self, Op},
    reservation::Reservation,
};

/// Bytes at the start of a segment: checksum, segment number, number of the first transaction.
const SEGMENT_HEAD: usize = 24;
/// Bytes before the operations of a transaction: checksum, length.
const TRANSACTION_HEAD: usize = 16;
/// A segment with less growth than this many bytes is not compacted.
const MIN_GROWTH_BYTES: usize = 1 << 20;
/// A segment is compacted when it has grown by this multiple of its description.
const GROWTH_FACTOR: usize = 3;
/// Eighths of a segment after which the server refuses changes that add something.
const ADD_EIGHTHS: usize = 6;
/// Eighths of a segment that the sessions may take in a description. The rest is for requests that
/// run meanwhile.
const SESSION_EIGHTHS: usize = 1;
/// Eighths of a segment from which on compaction starts early, before changes are refused.
const EARLY_EIGHTHS: usize = 5;
/// Early compaction starts when the growth exceeds the segment's length divided by this number.
const EARLY_DIVISOR: usize = 16;

/// The log has no room for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log is full")]
pub struct Full;

/// Reason why a log cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Neither segment has a valid first word.
    #[error("its log has no valid segment")]
    NoBeginning,
    /// The newest segment is incomplete and the older segment is missing.
    #[error("a segment of its log is missing")]
    Missing,
    /// A complete transaction has an operation that cannot be decoded or applied.
    #[error("its log is inconsistent")]
    Nonsense,
}

/// The end of the log.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// Number of the current segment; its parity selects the place.
    segment: u64,
    /// Number of the next transaction.
    next: u64,
    /// Offset of the next transaction in the segment.
    at: usize,
    /// Offset behind [`Op::Complete`]; 0 while the segment is incomplete.
    complete: usize,
    /// Bytes of the segment that describe existing state; the other bytes are growth.
    described: usize,
    /// Bytes that are reserved for the rest of the description.
    reserved: usize,
}

/// Two segments of a memory object, of which one takes the operations of transactions.
#[derive(Debug)]
pub struct Log {
    memory: Arc<Memory>,
    /// Offset of the segments in `memory`.
    offset: usize,
    /// Size of a segment in bytes.
    len: usize,
    tail: Mutex<Tail>,
    reservation: Reservation,
    nearly_full: AtomicBool,
    signal: Mutex<CompactionSignal>,
    changed: Condvar,
}

/// State that the compactor waits for.
#[derive(Clone, Copy, Debug, Default)]
struct CompactionSignal {
    /// The log is long enough for compaction.
    is_due: bool,
    /// The server stops; waiting ends.
    stopped: bool,
}

impl Log {
    /// Returns the size in bytes of a segment that can describe any export of this shape, unless
    /// single inodes have millions of names. Most of the segment is a hole in the file.
    pub fn len_for(shape: Shape) -> u64 {
        // Twice: each inode with a name of usual length, each block as its own extent, and extended
        // attributes at their limit. The first term is for the sessions of small exports.
        (32 << 20)
            + u64::from(shape.inodes) * 1024
            + shape.arena / BLOCK * 64
            + (shape.arena / 8).max(2 << 20)
    }

    /// Returns a new log at `offset`: two segments of `len` bytes, both multiples of 8. The caller
    /// then describes everything that exists.
    pub fn new(memory: Arc<Memory>, offset: usize, len: usize) -> Log {
        let log = Log::unread(memory, offset, len);
        log.begin(&mut log.tail.lock());
        log
    }

    fn unread(memory: Arc<Memory>, offset: usize, len: usize) -> Log {
        Log {
            memory,
            offset,
            len,
            tail: Mutex::new(Tail { segment: 0, next: 1, at: 0, complete: 0, described: 0, reserved: 0 }),
            reservation: Reservation::default(),
            nearly_full: AtomicBool::new(false),
            signal: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Opens an existing log and passes each operation to `visit`, in order.
    ///
    /// # Errors
    /// The log has no valid segment, is incomplete, or `visit` fails.
    pub fn open(
        memory: Arc<Memory>,
        offset: usize,
        len: usize,
        mut visit: impl FnMut(Op<'_>) -> Result<(), LogError>,
    ) -> Result<Log, LogError> {
        let log = Log::unread(memory, offset, len);
        let begins = [0, 1].map(|place| log.begin_at(place));
        let newest = begins.into_iter().flatten().max().ok_or(LogError::NoBeginning)?;
        let older = begins.into_iter().flatten().find(|older| older.0 + 1 == newest.0);
        let complete = log.scan(newest, &mut |_| Ok(()))?.complete;
        if complete == 0 {
            log.scan(older.ok_or(LogError::Missing)?, &mut visit)?;
        }
        let mut tail = log.scan(newest, &mut visit)?;
        // The log does not tell how many of these bytes a new description would take. If the
        // segment is nearly full, assume none, so that compaction starts and measures it.
        tail.described = if tail.complete > len / 8 * EARLY_EIGHTHS {
            0
        } else {
            tail.complete.saturating_sub(SEGMENT_HEAD)
        };
        *log.tail.lock() = tail;
        log.note_room(&tail);
        Ok(log)
    }

    /// Appends a transaction of encoded operations, and leaves room for the rest of a description.
    ///
    /// # Errors
    /// [`Full`] if the segment has no room or the file system no space.
    pub fn append(&self, ops: &[u8]) -> Result<(), Full> {
        let mut tail = self.tail.lock();
        let limit = self.len - tail.reserved;
        self.write(&mut tail, ops, limit)
    }

    /// Appends a transaction that is part of the description of existing state.
    ///
    /// # Errors
    /// [`Full`] if the segment has no room or the file system no space.
    pub fn describe(&self, ops: &[u8]) -> Result<(), Full> {
        let mut tail = self.tail.lock();
        let before = tail.at;
        self.write(&mut tail, ops, self.len)?;
        tail.described += tail.at - before;
        tail.reserved = tail.reserved.saturating_sub(tail.at - before);
        Ok(())
    }

    /// Returns the bytes that the sessions may take in a description.
    pub fn room_for_sessions(&self) -> u64 {
        (self.len / 8 * SESSION_EIGHTHS) as u64
    }

    /// Returns true if the log has room only for changes that remove something.
    pub fn is_nearly_full(&self) -> bool {
        self.nearly_full.load(Ordering::Relaxed)
    }

    /// Returns true if the log has grown enough for compaction.
    pub fn is_long(&self) -> bool {
        self.is_long_with(&self.tail.lock())
    }

    fn is_long_with(&self, tail: &Tail) -> bool {
        let is_early = tail.at > self.len / 8 * EARLY_EIGHTHS;
        let limit = MIN_GROWTH_BYTES.max(GROWTH_FACTOR * tail.described).min(if is_early {
            self.len / EARLY_DIVISOR
        } else {
            self.len / 2
        });
        tail.complete > 0 && tail.at - SEGMENT_HEAD - tail.described > limit
    }

    /// Blocks until the log has grown long, if `growth` is set, or until `deadline`. Returns false
    /// once [`Log::end_waiting`] was called.
    pub fn await_growth(&self, deadline: Option<Instant>, growth: bool) -> bool {
        let mut signal = self.signal.lock();
        while !(signal.stopped || growth && signal.is_due) {
            match deadline {
                Some(deadline) if self.changed.wait_until(&mut signal, deadline).timed_out() => break,
                Some(_) => {}
                None => self.changed.wait(&mut signal),
            }
        }
        signal.is_due = false;
        !signal.stopped
    }

    /// Ends all present and future waits in [`Log::await_growth`].
    pub fn end_waiting(&self) {
        self.signal.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Returns true while the current segment does not describe everything that exists.
    pub fn is_incomplete(&self) -> bool {
        self.tail.lock().complete == 0
    }

    /// Switches to the other segment; the caller then describes everything that exists. Does
    /// nothing if the current segment is incomplete.
    pub fn exchange(&self) {
        let mut tail = self.tail.lock();
        if tail.complete > 0 {
            // The description takes no more than the current segment. Requests must leave it room,
            // because there is no third segment.
            let most = self.len / 8 * (ADD_EIGHTHS + SESSION_EIGHTHS);
            let reserved = tail.at.min(most);
            self.begin(&mut tail);
            tail.reserved = seeded!(DescriptionCrowdedOut, 0, reserved);
        }
    }

    /// Marks the current segment as complete and discards the older segment.
    ///
    /// # Errors
    /// [`Full`] if the segment has no room or the file system no space.
    pub fn complete(&self) -> Result<(), Full> {
        let mut ops = Vec::new();
        op::encode(&Op::Complete, &mut ops);
        let mut tail = self.tail.lock();
        self.write(&mut tail, &ops, self.len)?;
        (tail.complete, tail.reserved) = (tail.at, 0);
        // The lock is held, so no thread starts a segment in this place. Its pages stay reserved.
        self.memory.zero_present(self.place(tail.segment + 1), self.len);
        Ok(())
    }

    fn write(&self, tail: &mut Tail, ops: &[u8], limit: usize) -> Result<(), Full> {
        let was_long = self.is_long_with(tail);
        let end = tail.at + TRANSACTION_HEAD + ops.len().next_multiple_of(8);
        if end > limit {
            self.wake();
            return Err(Full);
        }
        let segment = (self.place(tail.segment), self.len);
        if let Err(e) = self.reservation.extend(&self.memory, tail.segment, segment, end) {
            log::debug!("no space for the log: {e}");
            self.wake();
            return Err(Full);
        }
        let at = self.place(tail.segment) + tail.at;
        self.memory.write(at + TRANSACTION_HEAD, ops);
        self.store(at + 8, ops.len() as u64);
        self.store(at, check(tail.segment, tail.next, ops));
        tail.at = end;
        tail.next += 1;
        self.note_room(tail);
        if !was_long && self.is_long_with(tail) {
            self.wake();
        }
        Ok(())
    }

    /// Wakes the compactor.
    fn wake(&self) {
        self.signal.lock().is_due = true;
        self.changed.notify_all();
    }

    fn note_room(&self, tail: &Tail) {
        let nearly_full = tail.at > self.len / 8 * ADD_EIGHTHS;
        self.nearly_full.store(nearly_full, Ordering::Relaxed);
    }

    /// Starts the next segment.
    fn begin(&self, tail: &mut Tail) {
        *tail = Tail {
            segment: tail.segment + 1,
            at: SEGMENT_HEAD,
            complete: 0,
            described: 0,
            reserved: 0,
            ..*tail
        };
        let at = self.place(tail.segment);
        self.store(at, 0);
        self.store(at + 8, tail.segment);
        self.store(at + 16, tail.next);
        self.store(at, hash([tail.segment, tail.next]));
        self.note_room(tail);
    }

    /// Returns the number and the first transaction of the segment in a place, if there is one.
    fn begin_at(&self, place: u64) -> Option<(u64, u64)> {
        let [check, segment, next] = [0, 8, 16].map(|word| self.load(self.place(place) + word));
        (check == hash([segment, next]) && segment % 2 == place && segment > 0).then_some((segment, next))
    }

    /// Reads a segment to its end.
    fn scan(
        &self,
        (segment, next): (u64, u64),
        visit: &mut impl FnMut(Op<'_>) -> Result<(), LogError>,
    ) -> Result<Tail, LogError> {
        let mut tail = Tail { segment, next, at: SEGMENT_HEAD, complete: 0, described: 0, reserved: 0 };
        let mut ops = Vec::new();
        while tail.at + TRANSACTION_HEAD <= self.len {
            let at = self.place(segment) + tail.at;
            let (expected, len) = (self.load(at), self.load(at + 8));
            let Some(len) =
                usize::try_from(len).ok().filter(|&len| len <= self.len - tail.at - TRANSACTION_HEAD)
            else {
                break;
            };
            ops.resize(len, 0);
            self.memory.read(at + TRANSACTION_HEAD, &mut ops);
            if expected != check(segment, tail.next, &ops) {
                break;
            }
            tail.at += TRANSACTION_HEAD + len.next_multiple_of(8);
            tail.next += 1;
            for op in op::decode(&ops) {
                match op.map_err(|_| LogError::Nonsense)? {
                    Op::Complete => tail.complete = tail.at,
                    op => visit(op)?,
                }
            }
        }
        Ok(tail)
    }

    fn place(&self, segment: u64) -> usize {
        self.offset + if segment.is_multiple_of(2) { 0 } else { self.len }
    }

    fn store(&self, at: usize, word: u64) {
        // Release: all earlier stores are visible before this word.
        self.memory.atomic_u64(at).store(word.to_le(), Ordering::Release);
    }

    fn load(&self, at: usize) -> u64 {
        u64::from_le(self.memory.load_u64(at))
    }
}

fn check(segment: u64, number: u64, ops: &[u8]) -> u64 {
    hash([segment, number, ops.len() as u64].into_iter().chain(words(ops)))
}

#[cfg(test)]
mod tests;
