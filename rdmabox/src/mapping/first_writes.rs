//! Reduces page faults at the first writes to a peer's mapped memory.
//!
//! A new mapping has no pages; each page appears with a fault. The cheapest way to write depends
//! on whether the file behind the mapping has the page:
//! - If the file has the page, a read fault also maps the pages around it, while a write fault
//!   maps a single page. So this module reads one byte of each [`UNIT`] before the copy.
//! - If the file lacks the page, a fault zeroes it before the copy overwrites it. `pwritev` does
//!   not zero. So long writes go through the file, which has the pages afterwards.
//!
//! # Concurrency
//! Any thread may write. The kernel runs one write per file at a time. While one thread writes to
//! the file, other threads populate the mapping instead, in parallel.

use std::{
    fs::{self, File},
    ops::Range,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};

use rustix::process::{Resource, getrlimit};
use zerocopy::FromZeros;

use super::{
    memory::Memory,
    page::{RESIDENCY, page_size},
};

/// Bytes tracked together, and mapped by one read fault: the kernel's default
/// `fault_around_bytes`.
const UNIT: usize = 64 * 1024;
/// Kernel setting that says which mappings of shared memory get huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Maximum number of pieces of one write through the file.
const PIECES: usize = 16;

/// Known state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// The state is not known.
    Unknown,
    /// The file has the unit's pages.
    InFile,
    /// The mapping has the unit's pages.
    Mapped,
}

/// State of each unit of a mapping.
#[derive(Debug)]
pub(crate) struct FirstWrites {
    /// File behind the mapping; `None` if it must not be written.
    file: Option<File>,
    units: Box<[AtomicU8]>,
    /// True while a thread writes to the file.
    writing: AtomicBool,
}

impl FirstWrites {
    /// Returns the state for a file of `len` bytes, or `None` if its table cannot be allocated.
    pub(crate) fn new(file: File, len: usize) -> Option<FirstWrites> {
        let longest = getrlimit(Resource::Fsize).current;
        let huge = fs::read_to_string(HUGE_PAGES).unwrap_or_default();
        let file = may_be_written(len, longest, &huge).then_some(file);
        // The table's pages are also allocated only when they are used.
        let units = <[AtomicU8]>::new_box_zeroed_with_elems(len.div_ceil(UNIT)).ok()?;
        Some(FirstWrites { file, units, writing: AtomicBool::new(false) })
    }

    /// Returns the units of a range: every unit that a short range touches, or the units that begin
    /// in a long range. The unit in which a long range begins belongs to the write before it.
    fn units_of(offset: usize, len: usize) -> Range<usize> {
        let first = if len < UNIT { offset / UNIT } else { offset.div_ceil(UNIT) };
        first..(offset + len).div_ceil(UNIT)
    }

    /// Returns the range from the start of the first unit to the end of the last unit.
    fn aligned(offset: usize, len: usize) -> Range<usize> {
        let units = FirstWrites::units_of(offset, len);
        units.start * UNIT..units.end * UNIT
    }

    /// Returns the least known state among the units of a range.
    #[inline]
    fn state(&self, offset: usize, len: usize) -> State {
        let units = &self.units[FirstWrites::units_of(offset, len)];
        match units.iter().map(|unit| unit.load(Ordering::Relaxed)).min() {
            Some(0) => State::Unknown,
            Some(1) => State::InFile,
            Some(_) | None => State::Mapped,
        }
    }

    /// Records a state for the units of a range.
    fn mark(&self, state: State, offset: usize, len: usize) {
        for unit in &self.units[FirstWrites::units_of(offset, len)] {
            // A more advanced state that another thread recorded stays.
            unit.fetch_max(state as u8, Ordering::Relaxed);
        }
    }

    /// Writes consecutive pieces through the file. Returns false if not all bytes were written this
    /// way.
    ///
    /// # Safety
    /// Each piece is mapped for its length.
    unsafe fn write_file(
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
        // SAFETY: the caller guarantees that the pieces are mapped, and `count` vectors are
        // initialized.
        let done = unsafe { libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), count, offset as libc::off_t) };
        self.writing.store(false, Ordering::Release);
        let all = usize::try_from(done) == Ok(len);
        if all {
            self.mark(State::InFile, offset, len);
        }
        all
    }
}

impl Memory {
    /// Prepares the copy of consecutive pieces to a mapping of a peer's memory. Either maps pages
    /// with fewer faults than the copy would take, or writes the pieces itself and returns true:
    /// then nothing is left to copy. Has no effect on other memory.
    ///
    /// # Safety
    /// Each piece is mapped for its length.
    #[inline]
    pub(crate) unsafe fn prepare_write(
        &self,
        offset: usize,
        len: usize,
        pieces: impl ExactSizeIterator<Item = (*const u8, usize)>,
    ) -> bool {
        let Some(first) = &self.first_writes else { return false };
        self.check(offset, len);
        match first.state(offset, len) {
            State::Mapped => false,
            // SAFETY: the caller keeps this function's contract.
            state => unsafe { self.prepare_unmapped(first, state, (offset, len), pieces) },
        }
    }

    /// Implements the slow path of `prepare_write`, for ranges that are not known to be mapped.
    ///
    /// # Safety
    /// Each piece is mapped for its length.
    #[cold]
    unsafe fn prepare_unmapped(
        &self,
        first: &FirstWrites,
        state: State,
        (offset, len): (usize, usize),
        pieces: impl ExactSizeIterator<Item = (*const u8, usize)>,
    ) -> bool {
        let whole = FirstWrites::aligned(offset, len);
        let whole = whole.start..whole.end.min(self.len());
        if state == State::InFile || self.is_resident(&whole) {
            self.touch_units(&whole);
        } else if len < UNIT {
            // A short write maps no more than it writes, because the rest may never be used.
            return false;
        // SAFETY: the caller keeps this function's contract.
        } else if unsafe { first.write_file(offset, len, pieces) } {
            return true;
        } else {
            self.populate(whole.start, whole.len());
        }
        first.mark(State::Mapped, offset, len);
        false
    }

    /// Returns true if the kernel reports every page of the range as present in the file.
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

    /// Reads a byte of each unit, so that one read fault per unit maps the pages that the file has.
    fn touch_units(&self, range: &Range<usize>) {
        let base = self.addr() as usize;
        let mut at = range.start;
        while at < range.end {
            // SAFETY: the address is inside the mapping. Concurrent writes do no harm, because the
            // byte is not used.
            unsafe { self.ptr(at).read_volatile() };
            // The kernel maps the aligned unit around the faulting address.
            at = (base + at + 1).next_multiple_of(UNIT) - base;
        }
    }
}

/// Returns true if writes to a file of `len` bytes are allowed by the process's file size limit
/// and keep huge pages possible.
fn may_be_written(len: usize, longest: Option<u64>, huge: &str) -> bool {
    // A write beyond the limit raises SIGXFSZ and ends the process; a mapping has no such limit. If
    // huge pages are for mappings that request them, a write to the file would allocate small pages
    // for good.
    longest.is_none_or(|longest| len as u64 <= longest) && !huge.contains("[advise]")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn first_writes(len: usize) -> FirstWrites {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        // A file that may be written, independent of the huge page setting of this machine.
        FirstWrites { file: Some(file.try_clone().unwrap()), ..FirstWrites::new(file, len).unwrap() }
    }

    /// Returns true if shared memory has no huge pages here; otherwise prints why the test does not
    /// run.
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
        unsafe { writes.write_file(offset, len, pieces.iter().map(|piece| (piece.as_ptr(), piece.len()))) }
    }

    #[test]
    fn the_state_of_a_range_is_the_least_known_state_of_its_units() {
        let writes = first_writes(4 * UNIT + 5);
        assert_eq!(writes.state(0, 4 * UNIT + 5), State::Unknown);
        assert!(write(&writes, UNIT, &[&[7; UNIT]]));
        assert_eq!(writes.state(UNIT, UNIT), State::InFile);
        assert_eq!(writes.state(UNIT, UNIT + 1), State::Unknown, "and the one behind it");
        assert_eq!(writes.state(1, UNIT), State::InFile, "it begins inside");
        assert_eq!(writes.state(UNIT + 1, UNIT), State::Unknown, "it begins before, another inside");
        assert_eq!(writes.state(2 * UNIT - 1, 1), State::InFile, "a part of it");
        assert_eq!(writes.state(2 * UNIT - 1, 2), State::Unknown, "a part of two");
        writes.mark(State::Mapped, UNIT, UNIT);
        writes.mark(State::InFile, 0, 4 * UNIT + 5);
        assert_eq!(writes.state(UNIT, UNIT), State::Mapped, "as before");
        assert_eq!(writes.state(0, 4 * UNIT + 5), State::InFile);
        writes.mark(State::Mapped, 4 * UNIT, 5);
        assert_eq!(writes.state(4 * UNIT + 4, 1), State::Mapped);
        assert_eq!(writes.state(3, 0), State::InFile, "nothing of the first");
        assert_eq!(FirstWrites::aligned(1, 5), 0..UNIT);
        assert_eq!(FirstWrites::aligned(1, 2 * UNIT), UNIT..3 * UNIT);
    }

    #[test]
    fn consecutive_long_writes_mark_every_unit_once() {
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
    fn a_write_that_cannot_go_through_the_file_is_left_to_the_caller() {
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

    /// Returns a peer's memory and a mapping of it.
    fn mapped() -> (Memory, Memory) {
        const LEN: usize = 16 << 20;
        let lent = Memory::shared("test", LEN).unwrap();
        let mapping = Memory::from_peer(lent.peer_fd(true).unwrap(), LEN, true).unwrap();
        (lent, mapping)
    }

    fn put(mapping: &Memory, offset: usize, bytes: &[u8]) {
        // SAFETY: a slice.
        if unsafe { !mapping.prepare_write(offset, bytes.len(), [(bytes.as_ptr(), bytes.len())].into_iter()) }
        {
            mapping.write(offset, bytes);
        }
    }

    /// Returns the number of resident bytes of a mapping.
    fn present(mapping: &Memory) -> usize {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", mapping.addr());
        let mut of_it = maps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = of_it.find_map(|line| line.strip_prefix("Rss:")).unwrap().trim();
        rss.strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
    }

    #[test]
    fn pages_that_the_file_lacks_are_written_through_it_once() {
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
    fn pages_that_the_file_has_are_mapped_by_unit() {
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
        // A short write maps only pages that exist. A long write maps nothing but its own range.
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
    fn a_file_is_not_written_if_that_ends_the_process_or_prevents_huge_pages() {
        assert!(may_be_written(UNIT, None, "always within_size advise [never] deny force"));
        assert!(may_be_written(UNIT, Some(UNIT as u64), ""));
        assert!(!may_be_written(UNIT + 1, Some(UNIT as u64), ""));
        assert!(!may_be_written(UNIT, None, "always within_size [advise] never deny force"));
    }
}
