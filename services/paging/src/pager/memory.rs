//! Memory of the program whose pages the pager moves.
//!
//! # Concurrency
//! [`PagedMemory`] is memory like any other: the borrow checker governs its use. The fault thread
//! moves its pages at any time, without a change that the program sees.

use std::{
    fmt,
    ops::{Deref, DerefMut, Range},
    sync::Arc,
};

use crate::{
    engine::{Command, Handle},
    error::PagingError,
    kernel::memory,
    logic::PAGE,
};

/// Zeroed memory that may be larger than the pager's local budget. It is unmapped when dropped.
///
/// It dereferences to a slice of bytes. A load or store may wait for a server. If the bytes of a
/// page are lost with their servers, a load or store on it raises SIGBUS.
pub struct PagedMemory {
    start: usize,
    /// Length that the program asked for, in bytes.
    len: usize,
    handle: Arc<Handle>,
}

impl PagedMemory {
    /// Maps memory and hands it to the fault thread.
    pub(crate) fn new(handle: &Arc<Handle>, len: usize) -> Result<PagedMemory, PagingError> {
        let mapped =
            len.checked_next_multiple_of(PAGE).filter(|mapped| *mapped > 0 && *mapped < isize::MAX as usize);
        let mapped = mapped.ok_or(PagingError::Length(len))?;
        let os = |what| move |source| PagingError::Os { what, source };
        let start = memory::map(mapped).map_err(os("mmap"))?;
        let answer = handle.ask(|reply| Command::Map { start, len: mapped, reply });
        let registered = match answer {
            Some(outcome) => outcome.map_err(os("UFFDIO_REGISTER")),
            None => Err(PagingError::Stopped),
        };
        match registered {
            Ok(()) => Ok(PagedMemory { start, len, handle: Arc::clone(handle) }),
            Err(error) => {
                // SAFETY: No reference to the mapping was made.
                unsafe { memory::unmap(start, mapped) };
                Err(error)
            }
        }
    }

    /// Returns the address of the first byte. It is valid for reads and writes of
    /// [`len`](slice::len) bytes as long as the value lives.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start as *mut u8
    }

    /// Forgets the bytes of a range, which read as zero afterwards. Pages that lie in it completely
    /// use no memory any more, here and at servers.
    ///
    /// # Errors
    /// [`PagingError::Os`] if the kernel refuses, and [`PagingError::Stopped`].
    ///
    /// # Panics
    /// If the range is not in the memory.
    pub fn discard(&mut self, range: Range<usize>) -> Result<(), PagingError> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        let pages = range.start.div_ceil(PAGE)..range.end / PAGE;
        if pages.start >= pages.end {
            self[range].fill(0);
            return Ok(());
        }
        self[range.start..pages.start * PAGE].fill(0);
        self[pages.end * PAGE..range.end].fill(0);
        let region = self.start;
        match self.handle.ask(|reply| Command::Discard { region, pages, reply }) {
            Some(outcome) => outcome.map_err(|source| PagingError::Os { what: "MADV_DONTNEED", source }),
            None => Err(PagingError::Stopped),
        }
    }
}

impl Deref for PagedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: The mapping has at least `len` bytes, begins as zeros, and lives as long as the
        // value. The fault thread changes no bytes that a load returns.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
    }
}

impl DerefMut for PagedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: As for `deref`; `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.len) }
    }
}

impl Drop for PagedMemory {
    fn drop(&mut self) {
        let region = self.start;
        match self.handle.ask(|reply| Command::Unmap { region, reply }) {
            Some(Ok(())) => {}
            Some(Err(error)) => log::error!("cannot end the paging of {region:#x}: {error}"),
            // A child of `fork` does not have the mapping.
            None => return,
        }
        // SAFETY: The value goes, and references to its bytes are gone.
        unsafe { memory::unmap(self.start, self.len.next_multiple_of(PAGE)) };
    }
}

impl fmt::Debug for PagedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PagedMemory { start, len, .. } = self;
        write!(f, "PagedMemory({len} bytes at {start:#x})")
    }
}
