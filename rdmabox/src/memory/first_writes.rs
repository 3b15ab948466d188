//! The first writes to a peer's memory that is mapped here.
//!
//! A mapping begins without pages. To make one present takes a microsecond or more, and if it never was in anybody's hands the kernel zeroes it, too, only for it to be overwritten.
//! `pwritev` to the file behind the mapping does neither: it puts the bytes into the file's pages. For the same bytes once more it is half as fast as a copy to pages that are
//! present. So a part of the memory is written through the file a few times, and is made present then, when that has cost about as much as making it present.
//!
//! The kernel lets one write to a file go on at a time. Where a thread of this process is at it, others make pages present instead, which they can do side by side.

use std::{
    fs::File,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};

/// Bytes of which account is kept together. What is shorter is written to the mapping in any case.
pub(super) const UNIT: usize = 64 * 1024;
/// So often a unit is written through the file.
const TIMES: u8 = 3;
/// It is present.
const PRESENT: u8 = u8::MAX;
/// Pieces of one write.
const PIECES: usize = 16;

/// How a range is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the mapping, where it is present.
    Mapped,
    /// To the mapping, once it has been made present.
    Populated,
    /// To the file.
    File,
}

/// What has become of each unit.
#[derive(Debug)]
pub(super) struct FirstWrites {
    file: File,
    units: Box<[AtomicU8]>,
    /// A thread is writing to the file.
    writing: AtomicBool,
}

impl FirstWrites {
    pub(super) fn new(file: File, len: usize) -> FirstWrites {
        let units = (0..len.div_ceil(UNIT)).map(|_| AtomicU8::new(0)).collect();
        FirstWrites { file, units, writing: AtomicBool::new(false) }
    }

    fn units(&self, offset: usize, len: usize) -> &[AtomicU8] {
        match len {
            0 => &[],
            _ => &self.units[offset / UNIT..=(offset + len - 1) / UNIT],
        }
    }

    #[inline]
    pub(super) fn way(&self, offset: usize, len: usize) -> Way {
        if len < UNIT {
            return Way::Mapped;
        }
        let most = |so_far: (bool, bool), unit: &AtomicU8| match unit.load(Ordering::Relaxed) {
            PRESENT => so_far,
            times => (true, so_far.1 || times >= TIMES),
        };
        match self.units(offset, len).iter().fold((false, false), most) {
            (false, _) => Way::Mapped,
            (true, false) => Way::File,
            (true, true) => Way::Populated,
        }
    }

    /// The range is present.
    pub(super) fn is_present(&self, offset: usize, len: usize) {
        self.units(offset, len).iter().for_each(|unit| unit.store(PRESENT, Ordering::Relaxed));
    }

    /// Writes pieces, one behind the other. False if it did not, or not all of them.
    ///
    /// # Safety
    /// Each is mapped for its length.
    pub(super) unsafe fn write(
        &self,
        offset: usize,
        len: usize,
        pieces: impl ExactSizeIterator<Item = (*const u8, usize)>,
    ) -> bool {
        if pieces.len() > PIECES || self.writing.swap(true, Ordering::Acquire) {
            return false;
        }
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
        let mut count = 0;
        for (vector, (ptr, len)) in vectors.iter_mut().zip(pieces) {
            *vector = libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len };
            count += 1;
        }
        // SAFETY: the kernel reads from pieces that are mapped, as the caller says, and as many as there are vectors.
        let done =
            unsafe { libc::pwritev(self.file.as_raw_fd(), vectors.as_ptr(), count, offset as libc::off_t) };
        self.writing.store(false, Ordering::Release);
        for unit in self.units(offset, len) {
            // One that is made present meanwhile stays so. A count that is lost is no harm.
            let times = unit.load(Ordering::Relaxed);
            if times < TIMES {
                let _ = unit.compare_exchange(times, times + 1, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        usize::try_from(done) == Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn first_writes(len: usize) -> FirstWrites {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        FirstWrites::new(file, len)
    }

    fn write(writes: &FirstWrites, offset: usize, pieces: &[&[u8]]) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        // SAFETY: slices.
        unsafe { writes.write(offset, len, pieces.iter().map(|piece| (piece.as_ptr(), piece.len()))) }
    }

    #[test]
    fn a_unit_goes_through_the_file_a_few_times_and_is_made_present_then() {
        let writes = first_writes(4 * UNIT + 5);
        let bytes = vec![7; UNIT];
        assert_eq!(writes.way(0, UNIT - 1), Way::Mapped, "too short");
        for _ in 0..TIMES {
            assert_eq!(writes.way(UNIT, UNIT), Way::File);
            assert!(write(&writes, UNIT, &[&bytes]));
        }
        assert_eq!(writes.way(UNIT, UNIT), Way::Populated);
        assert_eq!(writes.way(2 * UNIT, UNIT), Way::File, "another one");
        assert_eq!(writes.way(UNIT + 1, UNIT), Way::Populated, "a part of it");
        writes.is_present(UNIT, UNIT);
        assert_eq!(writes.way(UNIT, UNIT), Way::Mapped);
        assert_eq!(writes.way(UNIT + 1, UNIT), Way::File, "and the one behind it");
        writes.is_present(2 * UNIT, 2 * UNIT + 5);
        assert_eq!(writes.way(UNIT, 3 * UNIT + 5), Way::Mapped);
        assert_eq!(writes.way(0, 4 * UNIT + 5), Way::File);
    }

    #[test]
    fn pieces_are_written_one_behind_the_other() {
        let writes = first_writes(2 * UNIT);
        let (one, two) = (vec![1; 3], vec![2; UNIT]);
        assert!(write(&writes, 10, &[&one, &[], &two]));
        let mut all = Vec::new();
        (&writes.file).read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 2 * UNIT);
        assert!(
            all[10..13] == one && all[13..13 + UNIT] == two && all[13 + UNIT..].iter().all(|byte| *byte == 0)
        );
    }

    #[test]
    fn what_cannot_be_written_so_is_left_to_the_caller() {
        let writes = first_writes(2 * UNIT);
        let byte = [1];
        assert!(!write(&writes, 0, &[&byte[..]; PIECES + 1]), "too many");
        writes.writing.store(true, Ordering::Relaxed);
        assert!(!write(&writes, 0, &[&byte]), "another thread is at it");
        writes.writing.store(false, Ordering::Relaxed);
        assert!(write(&writes, 0, &[&byte]));
        let read_only = File::open("/proc/self/exe").unwrap();
        let writes = FirstWrites::new(read_only, UNIT);
        assert!(!write(&writes, 0, &[&byte]), "the kernel refuses");
        assert!(!writes.writing.load(Ordering::Relaxed));
    }
}
