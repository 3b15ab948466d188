//! The log: transactions, one behind the other, in one of two segments of the object.
//!
//! A transaction counts when its first word does: a hash of the rest, of its number and of the segment's, written last. So of what a killed
//! server was writing nothing is read, nor is anything that lies there from before. There is one lock over the end of the log, for
//! the length of a copy of some hundred bytes: it leaves no gap in which a transaction is missing although a later one is there, and
//! whoever depends on another one's transaction comes after it.
//!
//! When a segment has grown long, all further transactions go to the other one, and everything that there is is said there besides, inode by
//! inode, while requests go on. Until that is [`Op::Complete`] both are read, the older one first; afterwards
//! the older one is given back.
//!
//! There is no third segment, so that all that there is has to fit, whatever requests add meanwhile. What a segment has said says at least as
//! much: so requests leave as much room in the next one as this one has taken, until it is said. That is at most `ADDS` for what
//! requests have added and `SESSIONS` for what sessions have.
//!
//! Threading: any thread. It does not know what the transactions say.

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
use seeded_faults::{Fault, seeded};

use super::{
    hash,
    header::Shape,
    op::{self, Op},
    reservation::Reservation,
    words,
};

/// Bytes at the beginning of a segment: check, number, number of the first transaction.
const BEGIN: usize = 24;
/// Bytes in front of a transaction: check, length.
const FRONT: usize = 16;
/// A segment is not exchanged for less than this.
const LEAST: usize = 1 << 20;
/// How many times longer than all that there is a segment may get.
const GROWTH: usize = 3;
/// Eighths of a segment behind which nothing is added any more, but what takes something away or is said of sessions.
const ADDS: usize = 6;
/// Eighths that sessions may take when everything is said. The rest is for what is said meanwhile.
const SESSIONS: usize = 1;
/// From so many eighths on a segment is exchanged for little: soon nothing can be added.
const HURRY: usize = 5;
/// That is, for this part of it.
const LITTLE: usize = 16;

/// The log has no room for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log is full")]
pub struct Full;

/// Why a log cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Neither segment has a beginning.
    #[error("its log has no beginning")]
    NoBeginning,
    /// What was said before the newest segment is missing, and it does not say everything itself.
    #[error("a part of its log is missing")]
    Missing,
    /// A whole transaction does not mean anything, or something that cannot be.
    #[error("its log contradicts itself")]
    Nonsense,
}

/// The end of the log.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// Number of the segment that is written; odd and even ones take turns in the two places.
    segment: u64,
    /// Number of the next transaction.
    next: u64,
    /// Its place in the segment.
    at: usize,
    /// Where everything had been said in the segment; 0 before that.
    complete: usize,
    /// Bytes of it that said what there was. The rest is what it has grown by.
    said: usize,
    /// Room for what has still to be said there of all that there is.
    owed: usize,
}

/// The log.
#[derive(Debug)]
pub struct Log {
    memory: Arc<Memory>,
    /// Where the segments begin.
    offset: usize,
    /// Bytes of a segment.
    len: usize,
    tail: Mutex<Tail>,
    reservation: Reservation,
    nearly_full: AtomicBool,
    watch: Mutex<Watch>,
    changed: Condvar,
}

/// What wakes whoever writes the log anew.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// It has grown long.
    long: bool,
    /// There is nothing to wait for any more.
    over: bool,
}

impl Log {
    /// Bytes of a segment that is never too short for what an export of this shape can hold, but for names by the million of
    /// one inode. It is mostly a hole.
    pub fn len_for(shape: Shape) -> u64 {
        // An inode with a name of usual length, twice; a block as an extent of its own, twice; extended attributes at their limit, twice;
        // and something for the sessions of small ones.
        (32 << 20)
            + u64::from(shape.inodes) * 1024
            + shape.arena / BLOCK * 64
            + (shape.arena / 8).max(2 << 20)
    }

    /// A log of nothing, at `offset` of a memory: two segments of `len` bytes, multiples of 8. What is logged next has to say everything.
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
            tail: Mutex::new(Tail { segment: 0, next: 1, at: 0, complete: 0, said: 0, owed: 0 }),
            reservation: Reservation::default(),
            nearly_full: AtomicBool::new(false),
            watch: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The log that is there: each transaction goes to `visit`, in order.
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
        // How much of that would be said again nobody knows. Where much depends on it, that is found out.
        tail.said = if tail.complete > len / 8 * HURRY { 0 } else { tail.complete.saturating_sub(BEGIN) };
        *log.tail.lock() = tail;
        log.note_room(&tail);
        Ok(log)
    }

    /// Appends a transaction of these operations, which are encoded.
    pub fn append(&self, ops: &[u8]) -> Result<(), Full> {
        let mut tail = self.tail.lock();
        let limit = self.len - tail.owed;
        self.write(&mut tail, ops, limit)
    }

    /// Appends a transaction that says a part of all that there is.
    pub fn describe(&self, ops: &[u8]) -> Result<(), Full> {
        let mut tail = self.tail.lock();
        let before = tail.at;
        self.write(&mut tail, ops, self.len)?;
        tail.said += tail.at - before;
        tail.owed = tail.owed.saturating_sub(tail.at - before);
        Ok(())
    }

    /// Bytes that sessions may take when everything is said.
    pub fn room_for_sessions(&self) -> u64 {
        (self.len / 8 * SESSIONS) as u64
    }

    /// Too little is left for anything but what takes something away.
    pub fn is_nearly_full(&self) -> bool {
        self.nearly_full.load(Ordering::Relaxed)
    }

    /// It has grown long enough to be written anew.
    pub fn is_long(&self) -> bool {
        self.is_long_with(&self.tail.lock())
    }

    fn is_long_with(&self, tail: &Tail) -> bool {
        let hurry = tail.at > self.len / 8 * HURRY;
        let limit = LEAST.max(GROWTH * tail.said).min(if hurry { self.len / LITTLE } else { self.len / 2 });
        tail.complete > 0 && tail.at - BEGIN - tail.said > limit
    }

    /// Waits until it has grown long, if that is asked for, or until `deadline`. False if the end has come.
    pub fn await_growth(&self, deadline: Option<Instant>, growth: bool) -> bool {
        let mut watch = self.watch.lock();
        while !(watch.over || growth && watch.long) {
            match deadline {
                Some(deadline) if self.changed.wait_until(&mut watch, deadline).timed_out() => break,
                Some(_) => {}
                None => self.changed.wait(&mut watch),
            }
        }
        watch.long = false;
        !watch.over
    }

    /// Nobody is to wait any more.
    pub fn end_waiting(&self) {
        self.watch.lock().over = true;
        self.changed.notify_all();
    }

    /// Not everything has been said in the segment that is written.
    pub fn is_incomplete(&self) -> bool {
        self.tail.lock().complete == 0
    }

    /// From now on transactions go to the other segment, where everything is to be said anew. Nothing is done if that is the case already.
    pub fn exchange(&self) {
        let mut tail = self.tail.lock();
        if tail.complete > 0 {
            let most = self.len / 8 * (ADDS + SESSIONS);
            let owed = tail.at.min(most);
            self.begin(&mut tail);
            tail.owed = if seeded(Fault::DescriptionCrowdedOut) { 0 } else { owed };
        }
    }

    /// Everything has been said.
    pub fn complete(&self) -> Result<(), Full> {
        let mut ops = Vec::new();
        op::encode(&Op::Complete, &mut ops);
        let mut tail = self.tail.lock();
        self.write(&mut tail, &ops, self.len)?;
        (tail.complete, tail.owed) = (tail.at, 0);
        // Still under the lock, so that no thread begins a segment there. The pages stay reserved.
        self.memory.zero_present(self.place(tail.segment + 1), self.len);
        Ok(())
    }

    fn write(&self, tail: &mut Tail, ops: &[u8], limit: usize) -> Result<(), Full> {
        let was_long = self.is_long_with(tail);
        let end = tail.at + FRONT + ops.len().next_multiple_of(8);
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
        self.memory.write(at + FRONT, ops);
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

    /// It has to be written anew.
    fn wake(&self) {
        self.watch.lock().long = true;
        self.changed.notify_all();
    }

    fn note_room(&self, tail: &Tail) {
        let nearly_full = tail.at > self.len / 8 * ADDS;
        self.nearly_full.store(nearly_full, Ordering::Relaxed);
    }

    /// Begins the next segment.
    fn begin(&self, tail: &mut Tail) {
        *tail = Tail { segment: tail.segment + 1, at: BEGIN, complete: 0, said: 0, owed: 0, ..*tail };
        let at = self.place(tail.segment);
        self.store(at, 0);
        self.store(at + 8, tail.segment);
        self.store(at + 16, tail.next);
        self.store(at, hash([tail.segment, tail.next]));
        self.note_room(tail);
    }

    /// Number and first transaction of the segment in a place.
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
        let mut tail = Tail { segment, next, at: BEGIN, complete: 0, said: 0, owed: 0 };
        let mut ops = Vec::new();
        while tail.at + FRONT <= self.len {
            let at = self.place(segment) + tail.at;
            let (expected, len) = (self.load(at), self.load(at + 8));
            let Some(len) = usize::try_from(len).ok().filter(|&len| len <= self.len - tail.at - FRONT) else {
                break;
            };
            ops.resize(len, 0);
            self.memory.read(at + FRONT, &mut ops);
            if expected != check(segment, tail.next, &ops) {
                break;
            }
            tail.at += FRONT + len.next_multiple_of(8);
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
        // Release: what was written before is there before it.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: usize = 4096;

    fn memory() -> Arc<Memory> {
        Arc::new(Memory::private(8 + 2 * LEN).unwrap())
    }

    fn copy(memory: &Memory) -> Arc<Memory> {
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes);
        let copy = Memory::private(bytes.len()).unwrap();
        copy.write(0, &bytes);
        Arc::new(copy)
    }

    fn gone(ino: u64) -> Vec<u8> {
        let mut ops = Vec::new();
        op::encode(&Op::Gone(ino), &mut ops);
        ops
    }

    fn read(memory: &Arc<Memory>) -> Result<Vec<u64>, LogError> {
        let mut seen = Vec::new();
        Log::open(Arc::clone(memory), 8, LEN, |op| match op {
            Op::Gone(ino) => {
                seen.push(ino);
                Ok(())
            }
            _ => Err(LogError::Nonsense),
        })?;
        Ok(seen)
    }

    #[test]
    fn both_segments_count_until_everything_is_said() {
        let memory = memory();
        assert_eq!(read(&memory), Err(LogError::NoBeginning));
        let log = Log::new(Arc::clone(&memory), 8, LEN);
        log.append(&gone(1)).unwrap();
        assert_eq!(read(&memory), Err(LogError::Missing));
        log.complete().unwrap();
        log.append(&gone(2)).unwrap();
        assert_eq!(read(&memory), Ok(vec![1, 2]));
        log.exchange();
        log.append(&gone(3)).unwrap();
        log.exchange();
        log.append(&gone(4)).unwrap();
        assert_eq!(read(&memory), Ok(vec![1, 2, 3, 4]));
        log.complete().unwrap();
        assert_eq!(read(&memory), Ok(vec![3, 4]));
        log.exchange();
        log.complete().unwrap();
        log.append(&gone(5)).unwrap();
        assert_eq!(read(&memory), Ok(vec![5]));
    }

    #[test]
    fn a_full_log_says_so_and_stays_as_it_is() {
        let memory = memory();
        let log = Log::new(Arc::clone(&memory), 8, LEN);
        log.complete().unwrap();
        let mut written = Vec::new();
        let mut warned = None;
        while log.append(&gone(written.len() as u64)) != Err(Full) {
            written.push(written.len() as u64);
            warned = warned.or(log.is_nearly_full().then_some(written.len()));
        }
        assert_eq!(read(&memory), Ok(written.clone()));
        assert!(warned.is_some_and(|at| at < written.len() && at > written.len() / 2));
        log.exchange();
        assert!(!log.is_nearly_full());
        log.append(&gone(7)).unwrap();
    }

    /// Without room for what there is, the log could never be written anew: there is no third segment.
    #[test]
    fn requests_leave_room_for_all_that_there_is() {
        let memory = memory();
        let log = Log::new(Arc::clone(&memory), 8, LEN);
        let mut all = 0;
        while !log.is_nearly_full() {
            log.append(&gone(all)).unwrap();
            all += 1;
        }
        log.complete().unwrap();
        log.exchange();
        let mut meanwhile = 0;
        while log.append(&gone(1000 + meanwhile)) != Err(Full) {
            meanwhile += 1;
        }
        assert!(meanwhile > 10, "{meanwhile}");
        (0..all).for_each(|ino| log.describe(&gone(ino)).unwrap());
        // Those that were said leave their room to nobody else before the rest is.
        assert_eq!(log.append(&gone(7)), Err(Full));
        log.complete().unwrap();
        assert_eq!(read(&memory).unwrap().len() as u64, meanwhile + all);
    }

    /// A log of which a large part is needed grows by less than half of it until it is full.
    #[test]
    fn who_writes_it_anew_is_woken_in_time() {
        let log = Log::new(memory(), 8, LEN);
        while log.tail.lock().at < LEN * 5 / 8 {
            log.describe(&gone(1)).unwrap();
        }
        log.complete().unwrap();
        assert!(!log.is_long() && !log.watch.lock().long);
        while !log.is_nearly_full() {
            log.append(&gone(1)).unwrap();
        }
        assert!(log.is_long() && log.watch.lock().long);
        // What requests add while all is said is growth, too.
        log.exchange();
        while log.append(&gone(1)).is_ok() {}
        while log.tail.lock().at < LEN * 11 / 16 {
            log.describe(&gone(1)).unwrap();
        }
        log.complete().unwrap();
        assert!(log.is_long());
        log.exchange();
        log.complete().unwrap();
        assert!(!log.is_long());
        // And when it is full, whatever it has grown by.
        log.watch.lock().long = false;
        log.append(&[0; LEN]).unwrap_err();
        assert!(log.watch.lock().long);
    }

    proptest! {
        /// Whatever is torn off the end, all that was whole before is read, in order; and the log goes on from there.
        #[test]
        fn what_is_cut_off_is_not_read(
            steps in proptest::collection::vec(prop_oneof![8 => Just(0u8), 1 => Just(1), 1 => Just(2)], 1..60),
            last in any::<u64>(),
            cut in any::<prop::sample::Index>(),
            junk in any::<u8>(),
        ) {
            let memory = memory();
            let log = Log::new(Arc::clone(&memory), 8, LEN);
            log.complete().unwrap();
            for (at, step) in steps.iter().enumerate() {
                match step {
                    0 => log.append(&gone(at as u64)).unwrap(),
                    1 => log.exchange(),
                    _ => log.complete().unwrap(),
                }
            }
            let before = read(&memory).unwrap();
            let tail = *log.tail.lock();
            let start = log.place(tail.segment) + tail.at;
            let torn = copy(&memory);
            log.append(&gone(last)).unwrap();
            let after = read(&memory).unwrap();
            prop_assert_eq!(&after[..before.len()], &before[..]);
            prop_assert_eq!(&after[before.len()..], &[last]);
            // In part, in the order of addresses; the first word comes last.
            let mut written = vec![0; 32];
            memory.read(start, &mut written);
            let cut = cut.index(24);
            torn.write(start + 8, &written[8..8 + cut]);
            prop_assert_eq!(&read(&torn).unwrap(), &before);
            // Or with something else in its place.
            torn.write(start, &written);
            torn.write(start + cut, &[written[cut] ^ (junk | 1)]);
            let damaged = read(&torn).unwrap();
            prop_assert!(damaged == before || cut >= 16 + gone(last).len());
            let log = Log::open(Arc::clone(&torn), 8, LEN, |_| Ok(())).unwrap();
            log.append(&gone(77)).unwrap();
            let last = read(&torn).unwrap().last().copied();
            prop_assert_eq!(last, Some(77));
        }
    }
}
