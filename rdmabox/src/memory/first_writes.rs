//! The first writes to a peer's memory that is mapped here.
//!
//! A mapping begins without pages, which appear fault by fault. What that costs depends on whether the file behind the mapping has the page:
//!
//! - If it does, as the server has taken its memory from the system, a fault for reading brings in the pages around it, too, and all of them can be written then; one for writing
//!   brings a single page. So one byte of each [`UNIT`] is looked at before the rest is written.
//! - If it does not, the kernel finds a page and zeroes it, only for it to be overwritten. `pwritev` to the file does not zero. So what is long is written through the file, and the next time
//!   the file has it.
//!
//! The kernel lets one write to a file go on at a time. Where a thread of this process is at it, others make pages present instead, which they can do side by side.

use std::{
    fs::{self, File},
    ops::Range,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};

use rustix::process::{Resource, getrlimit};
use zerocopy::FromZeros;

use super::{
    Memory,
    mapping::{RESIDENCY, page_size},
};

/// Bytes of which account is kept together, and which a fault for reading brings in: the kernel's `fault_around_bytes`, as it comes.
const UNIT: usize = 64 * 1024;
/// Who is given huge pages of shared memory.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Pieces of one write through the file.
const PIECES: usize = 16;

/// What is known of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Nothing.
    Unknown,
    /// The file has it.
    InFile,
    /// It is present in the mapping.
    Mapped,
}

/// What has become of each unit.
#[derive(Debug)]
pub(super) struct FirstWrites {
    /// `None` where nothing may be written through it.
    file: Option<File>,
    units: Box<[AtomicU8]>,
    /// A thread is writing to the file.
    writing: AtomicBool,
}

impl FirstWrites {
    /// Of a file of so many bytes. `None` if it takes too much memory to keep account of them.
    pub(super) fn new(file: File, len: usize) -> Option<FirstWrites> {
        let longest = getrlimit(Resource::Fsize).current;
        let huge = fs::read_to_string(HUGE_PAGES).unwrap_or_default();
        let file = may_be_written(len, longest, &huge).then_some(file);
        // Their pages, too, are only there once they are used.
        let units = <[AtomicU8]>::new_box_zeroed_with_elems(len.div_ceil(UNIT)).ok()?;
        Some(FirstWrites { file, units, writing: AtomicBool::new(false) })
    }

    /// Those of which something lies in a short range; those that begin in a long one: what lies before is up to whoever writes before it.
    fn numbers(offset: usize, len: usize) -> Range<usize> {
        let first = if len < UNIT { offset / UNIT } else { offset.div_ceil(UNIT) };
        first..(offset + len).div_ceil(UNIT)
    }

    /// The range from the beginning of the first unit to the end of the last.
    fn whole(offset: usize, len: usize) -> Range<usize> {
        let numbers = FirstWrites::numbers(offset, len);
        numbers.start * UNIT..numbers.end * UNIT
    }

    /// What is known of all units of a range.
    #[inline]
    fn state(&self, offset: usize, len: usize) -> State {
        let units = &self.units[FirstWrites::numbers(offset, len)];
        match units.iter().map(|unit| unit.load(Ordering::Relaxed)).min() {
            Some(0) => State::Unknown,
            Some(1) => State::InFile,
            Some(_) | None => State::Mapped,
        }
    }

    /// The units of a range are so.
    fn are(&self, state: State, offset: usize, len: usize) {
        for unit in &self.units[FirstWrites::numbers(offset, len)] {
            // What another thread knows better stays.
            unit.fetch_max(state as u8, Ordering::Relaxed);
        }
    }

    /// Writes pieces, one behind the other, through the file, which has them then. False if it did not, or not all of them.
    ///
    /// # Safety
    /// Each is mapped for its length.
    unsafe fn write(
        &self,
        offset: usize,
        len: usize,
        pieces: impl ExactSizeIterator<Item = (*const u8, usize)>,
    ) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| len >= UNIT && pieces.len() <= PIECES) else {
            return false;
        };
        if self.writing.swap(true, Ordering::Acquire) {
            return false;
        }
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
        let mut count = 0;
        for (vector, (ptr, len)) in vectors.iter_mut().zip(pieces) {
            *vector = libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len };
            count += 1;
        }
        // SAFETY: the kernel reads from pieces that are mapped, as the caller says, and as many as there are vectors.
        let done = unsafe { libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), count, offset as libc::off_t) };
        self.writing.store(false, Ordering::Release);
        let all = usize::try_from(done) == Ok(len);
        if all {
            self.are(State::InFile, offset, len);
        }
        all
    }
}

impl Memory {
    /// Before a copy of pieces, one behind the other, to a mapping of a peer's memory. Makes pages present with fewer faults than the copy would take, or writes the pieces itself:
    /// then it is true, and there is nothing left to copy. Without effect elsewhere.
    ///
    /// # Safety
    /// Each piece is mapped for its length.
    #[inline]
    pub(crate) unsafe fn writes_first(
        &self,
        offset: usize,
        len: usize,
        pieces: impl ExactSizeIterator<Item = (*const u8, usize)>,
    ) -> bool {
        let Some(first) = &self.first_writes else { return false };
        self.check(offset, len);
        match first.state(offset, len) {
            State::Mapped => false,
            // SAFETY: as this function's contract.
            state => unsafe { self.write_first(first, state, (offset, len), pieces) },
        }
    }

    /// As [`writes_first`](Self::writes_first), where something is to be done.
    ///
    /// # Safety
    /// As there.
    #[cold]
    unsafe fn write_first(
        &self,
        first: &FirstWrites,
        state: State,
        (offset, len): (usize, usize),
        pieces: impl ExactSizeIterator<Item = (*const u8, usize)>,
    ) -> bool {
        let whole = FirstWrites::whole(offset, len);
        let whole = whole.start..whole.end.min(self.len());
        if state == State::InFile || self.is_resident(&whole) {
            self.look(&whole);
        } else if len < UNIT {
            // More than is written is not made present: it may be that nobody needs it.
            return false;
        // SAFETY: as this function's contract.
        } else if unsafe { first.write(offset, len, pieces) } {
            return true;
        } else {
            self.populate(whole.start, whole.len());
        }
        first.are(State::Mapped, offset, len);
        false
    }

    /// Whether the file behind the mapping has a range, as far as the kernel says.
    fn is_resident(&self, range: &Range<usize>) -> bool {
        let page = page_size();
        let (mut at, end) = (range.start / page, range.end.div_ceil(page));
        let mut residency = [0; RESIDENCY];
        while at < end {
            let residency = &mut residency[..(end - at).min(RESIDENCY)];
            self.residency(at, residency);
            if residency.contains(&0) {
                return false;
            }
            at += residency.len();
        }
        true
    }

    /// Reads a byte of each unit: as much as the kernel brings in with one fault for reading, of what the file has.
    fn look(&self, range: &Range<usize>) {
        let base = self.addr() as usize;
        let mut at = range.start;
        while at < range.end {
            // SAFETY: inside the mapping, of which any byte may be read at any time; what others write there meanwhile is nobody's concern, as the byte is not used.
            unsafe { self.ptr(at).read_volatile() };
            // The kernel brings in what lies between two multiples of it, of addresses.
            at = (base + at + 1).next_multiple_of(UNIT) - base;
        }
    }
}

/// Whether a file of so many bytes may be written, under the limit of this process and as to huge pages.
fn may_be_written(len: usize, longest: Option<u64>, huge: &str) -> bool {
    // Behind the limit a write ends the process (SIGXFSZ); a mapping knows no limit. And where huge pages are for mappings that ask for them, a write to
    // the file has small ones put there for good.
    longest.is_none_or(|longest| len as u64 <= longest) && !huge.contains("[advise]")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn first_writes(len: usize) -> FirstWrites {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        // Whatever huge pages this machine has.
        FirstWrites { file: Some(file.try_clone().unwrap()), ..FirstWrites::new(file, len).unwrap() }
    }

    /// Whether a page is a page. If not, says so.
    fn has_small_pages() -> bool {
        let huge = fs::read_to_string(HUGE_PAGES).unwrap_or_default();
        let small = huge.is_empty() || huge.contains("[never]") || huge.contains("[deny]");
        if !small {
            eprintln!("not run: {HUGE_PAGES} is {}", huge.trim());
        }
        small
    }

    fn write(writes: &FirstWrites, offset: usize, pieces: &[&[u8]]) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        // SAFETY: slices.
        unsafe { writes.write(offset, len, pieces.iter().map(|piece| (piece.as_ptr(), piece.len()))) }
    }

    #[test]
    fn what_is_known_of_a_range_is_what_is_known_of_each_unit() {
        let writes = first_writes(4 * UNIT + 5);
        assert_eq!(writes.state(0, 4 * UNIT + 5), State::Unknown);
        assert!(write(&writes, UNIT, &[&[7; UNIT]]));
        assert_eq!(writes.state(UNIT, UNIT), State::InFile);
        assert_eq!(writes.state(UNIT, UNIT + 1), State::Unknown, "and the one behind it");
        assert_eq!(writes.state(1, UNIT), State::InFile, "it begins inside");
        assert_eq!(writes.state(UNIT + 1, UNIT), State::Unknown, "it begins before, another inside");
        assert_eq!(writes.state(2 * UNIT - 1, 1), State::InFile, "a part of it");
        assert_eq!(writes.state(2 * UNIT - 1, 2), State::Unknown, "a part of two");
        writes.are(State::Mapped, UNIT, UNIT);
        writes.are(State::InFile, 0, 4 * UNIT + 5);
        assert_eq!(writes.state(UNIT, UNIT), State::Mapped, "as before");
        assert_eq!(writes.state(0, 4 * UNIT + 5), State::InFile);
        writes.are(State::Mapped, 4 * UNIT, 5);
        assert_eq!(writes.state(4 * UNIT + 4, 1), State::Mapped);
        assert_eq!(writes.state(3, 0), State::InFile, "nothing of the first");
        assert_eq!(FirstWrites::whole(1, 5), 0..UNIT);
        assert_eq!(FirstWrites::whole(1, 2 * UNIT), UNIT..3 * UNIT);
    }

    #[test]
    fn long_writes_that_follow_each_other_know_each_unit_once() {
        let writes = first_writes(7 * UNIT);
        let bytes = vec![7; 3 * UNIT / 2];
        for state in [State::Unknown, State::InFile] {
            for at in (5..5 * UNIT).step_by(bytes.len()) {
                assert_eq!(writes.state(at, bytes.len()), state, "{at}");
                assert!(write(&writes, at, &[&bytes]));
            }
        }
    }

    #[test]
    fn pieces_are_written_one_behind_the_other() {
        let writes = first_writes(2 * UNIT);
        let (one, two) = (vec![1; 3], vec![2; UNIT]);
        assert!(write(&writes, 10, &[&one, &[], &two]));
        let mut all = Vec::new();
        writes.file.as_ref().unwrap().read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 2 * UNIT);
        assert!(
            all[10..13] == one && all[13..13 + UNIT] == two && all[13 + UNIT..].iter().all(|byte| *byte == 0)
        );
    }

    #[test]
    fn what_cannot_be_written_so_is_left_to_the_caller() {
        let writes = first_writes(2 * UNIT);
        let (byte, unit) = ([1], [1; UNIT]);
        assert!(!write(&writes, 0, &[&unit[1..]]), "too short");
        assert!(!write(&writes, 0, &[&[&unit[..]], &[&byte[..]; PIECES][..]].concat()), "too many");
        writes.writing.store(true, Ordering::Relaxed);
        assert!(!write(&writes, 0, &[&unit]), "another thread is at it");
        writes.writing.store(false, Ordering::Relaxed);
        assert_eq!(writes.state(0, 2 * UNIT), State::Unknown);
        assert!(write(&writes, 0, &[&unit]));
        let read_only = File::open("/proc/self/exe").unwrap();
        let writes = FirstWrites::new(read_only, UNIT).unwrap();
        assert!(!write(&writes, 0, &[&unit]), "the kernel refuses");
        assert_eq!(writes.state(0, UNIT), State::Unknown);
        assert!(!writes.writing.load(Ordering::Relaxed));
        let nowhere = FirstWrites { file: None, ..writes };
        assert!(!write(&nowhere, 0, &[&unit]));
    }

    /// A peer's memory, and the mapping of it.
    fn mapped() -> (Memory, Memory) {
        const LEN: usize = 16 << 20;
        let lent = Memory::shared("test", LEN).unwrap();
        let mapping = Memory::from_peer(lent.peer_fd(true).unwrap(), LEN, true).unwrap();
        (lent, mapping)
    }

    fn put(mapping: &Memory, offset: usize, bytes: &[u8]) {
        // SAFETY: a slice.
        if unsafe { !mapping.writes_first(offset, bytes.len(), [(bytes.as_ptr(), bytes.len())].into_iter()) }
        {
            mapping.write(offset, bytes);
        }
    }

    /// Bytes that are present in a mapping, in anybody's pages.
    fn present(mapping: &Memory) -> usize {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", mapping.addr());
        let mut of_it = maps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = of_it.find_map(|line| line.strip_prefix("Rss:")).unwrap().trim();
        rss.strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
    }

    #[test]
    fn what_the_file_does_not_have_is_written_through_it_once() {
        if !has_small_pages() {
            return;
        }
        let (lent, mapping) = mapped();
        let state = || mapping.first_writes.as_ref().unwrap().state(UNIT, UNIT);
        for (byte, known) in [(1, State::InFile), (2, State::Mapped), (3, State::Mapped)] {
            put(&mapping, UNIT, &[byte; UNIT]);
            assert_eq!(state(), known);
            assert_eq!(present(&mapping) > 0, known == State::Mapped);
            let mut all = vec![0; 3 * UNIT];
            lent.read(0, &mut all);
            assert!(all.iter().enumerate().all(|(at, was)| *was == if at / UNIT == 1 { byte } else { 0 }));
        }
    }

    #[test]
    fn what_the_file_has_is_made_present_by_unit() {
        if !has_small_pages() {
            return;
        }
        let (lent, mapping) = mapped();
        let state = |at| mapping.first_writes.as_ref().unwrap().state(at, 1);
        lent.write(UNIT, &[1; 2 * UNIT]);
        put(&mapping, UNIT + 5, &[2; 3]);
        assert_eq!((state(UNIT), state(2 * UNIT)), (State::Mapped, State::Unknown));
        put(&mapping, UNIT, &[3; 2 * UNIT]);
        assert_eq!(
            (state(0), state(2 * UNIT), state(3 * UNIT)),
            (State::Unknown, State::Mapped, State::Unknown)
        );
        // What is short brings in nothing that is not there; neither does what is long, but for itself.
        let before = present(&mapping);
        put(&mapping, 5 * UNIT + 5, &[4; 3]);
        assert_eq!((state(5 * UNIT), present(&mapping)), (State::Unknown, before + page_size()));
        let end = mapping.len() - 2 * UNIT + 1;
        put(&mapping, end, &vec![5; 2 * UNIT - 1]);
        assert_eq!(
            (state(end), state(end + UNIT), present(&mapping)),
            (State::Unknown, State::InFile, before + page_size())
        );
        let mut all = vec![0; mapping.len()];
        lent.read(0, &mut all);
        let expected = |at: usize| match at {
            _ if at >= end => 5,
            _ if (UNIT..3 * UNIT).contains(&at) => 3,
            _ if (5 * UNIT + 5..5 * UNIT + 8).contains(&at) => 4,
            _ => 0,
        };
        assert!(all.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    }

    #[test]
    fn nothing_is_written_where_it_would_end_the_process_or_take_huge_pages_away() {
        assert!(may_be_written(UNIT, None, "always within_size advise [never] deny force"));
        assert!(may_be_written(UNIT, Some(UNIT as u64), ""));
        assert!(!may_be_written(UNIT + 1, Some(UNIT as u64), ""));
        assert!(!may_be_written(UNIT, None, "always within_size [advise] never deny force"));
    }
}
