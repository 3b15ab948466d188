//! Pages of a memory: residency, zeroing and releasing, mapping in advance, pins.
//!
//! # Concurrency
//! Any thread. `pins` is held shared while pages are discarded and exclusively while a pin is
//! added or removed.

use std::{io, os::fd::AsRawFd, sync::Arc};

use super::Memory;
use crate::mapping::{
    error::{MemoryError, os},
    page::{RESIDENCY, page_size},
};

impl Memory {
    /// Zeroes a range without allocating pages that are not present: those read as zero already.
    ///
    /// # Panics
    /// See [`zero`](Self::zero).
    pub fn zero_present(&self, offset: usize, len: usize) {
        let Some(fd) = &self.fd else { return self.zero(offset, len) };
        self.check(offset, len);
        let next_data = |from: usize| {
            // SAFETY: plain lseek; no code uses this descriptor's file position.
            let found = unsafe { libc::lseek(fd.as_raw_fd(), from as libc::off_t, libc::SEEK_DATA) };
            usize::try_from(found).ok()
        };
        let (end, page) = (offset + len, page_size());
        let mut residency = [0; RESIDENCY];
        let mut at = offset;
        while at < end {
            let residency = &mut residency[..(end.div_ceil(page) - at / page).min(RESIDENCY)];
            self.residency(at / page, residency);
            for alike in residency.chunk_by(|a, b| a == b) {
                let stop = ((at / page + alike.len()) * page).min(end);
                if alike[0] != 0 {
                    self.zero(at, stop - at);
                    at = stop;
                }
                // A page that is not resident may be swapped out. The loop advances page by page,
                // because SEEK_HOLE would also scan every present page behind the range.
                while at < stop {
                    let start = match next_data(at) {
                        Some(start) => start.min(stop),
                        // No data behind `at`.
                        None if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => stop,
                        // The file system does not support SEEK_DATA.
                        None => at,
                    };
                    let next = (start / page + 1).saturating_mul(page).min(stop);
                    self.zero(start, next - start);
                    at = next;
                }
            }
        }
    }

    /// Writes 1 for each resident page and 0 for each other page, starting at page number `first`.
    /// If mincore fails, every page counts as not resident. If the file belongs to another user,
    /// the kernel reports every page as resident.
    pub(crate) fn residency(&self, first: usize, out: &mut [u8]) {
        let page = page_size();
        // SAFETY: the pages belong to this mapping, and `out` has a byte for each.
        let asked = unsafe {
            libc::mincore(self.base.as_ptr().add(first * page).cast(), out.len() * page, out.as_mut_ptr())
        };
        // The other bits are reserved.
        out.iter_mut().for_each(|byte| *byte = if asked == 0 { *byte & 1 } else { 0 });
    }

    /// Returns the pages that lie completely inside a range to the system; they read as zero
    /// afterwards. Partial pages at the ends are zeroed. Private or pinned memory keeps its pages
    /// and is zeroed.
    pub fn discard(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.check(offset, len);
        // Held until the pages are released, so that no page gets pinned in between.
        let pins = self.pins.read();
        let Some(fd) = self.fd.as_ref().filter(|_| *pins == 0) else {
            self.zero_present(offset, len);
            return Ok(());
        };
        let page = page_size();
        let (start, end) = (offset.next_multiple_of(page), (offset + len) / page * page);
        if start >= end {
            self.zero(offset, len);
            return Ok(());
        }
        self.zero(offset, start - offset);
        self.zero(end, offset + len - end);
        // SAFETY: plain fallocate on an open descriptor.
        let done = unsafe {
            libc::fallocate(
                fd.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                start as libc::off_t,
                (end - start) as libc::off_t,
            )
        };
        if done < 0 { Err(os("fallocate(PUNCH_HOLE)")) } else { Ok(()) }
    }

    /// Maps the pages of a range before their use. A failure is harmless, because the first access
    /// maps them.
    pub fn populate(&self, offset: usize, len: usize) {
        if let Err(e) = populate(self, offset, len) {
            log::debug!("populating {len} bytes of memory failed: {e}");
        }
    }
}

/// Maps the pages of a range, for writing if the mapping is writable.
///
/// # Errors
/// The error of madvise: the system has too little memory, or does not support the advice.
pub(crate) fn populate(memory: &Memory, offset: usize, len: usize) -> io::Result<()> {
    const MADV_POPULATE_READ: i32 = 22;
    const MADV_POPULATE_WRITE: i32 = 23;
    memory.check(offset, len);
    let page = page_size();
    let start = offset / page * page;
    let end = (offset + len).next_multiple_of(page).min(memory.len.next_multiple_of(page));
    let advice = if memory.writable { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    // SAFETY: the range lies inside this mapping; the advice changes no contents.
    match unsafe { libc::madvise(memory.base.as_ptr().add(start).cast(), end - start, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps the pages of a memory in place for a device that uses their physical addresses. After a
/// page was discarded, the device and the processors would access different pages. The pin also
/// keeps the memory mapped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Memory>);

impl Pin {
    // Software devices have no physical addresses.
    #[cfg_attr(not(feature = "ibverbs"), allow(dead_code))]
    pub(crate) fn new(memory: &Arc<Memory>) -> Pin {
        *memory.pins.write() += 1;
        Pin(Arc::clone(memory))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        *self.0.pins.write() -= 1;
    }
}
