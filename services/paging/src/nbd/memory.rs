//! Access to paged memory by system calls: a lost page is an error, and raises no signal.
//!
//! The bytes go through a file in memory. Calls such as `process_vm_readv` would need no file. But
//! the kernel pins pages for them, and a pinned page may leave before its bytes are copied.
//!
//! # Concurrency
//! Any number of threads, each with a [`Scratch`] of its own. One lock is held while a range is
//! discarded. It is a leaf.

use std::{
    fs::File,
    io,
    ops::Range,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{logic::PAGE, pager::PagedMemory};

/// Zeros for the parts of pages that are not discarded.
static ZEROS: [u8; PAGE] = [0; PAGE];

/// Bytes that go through the file at once.
const PIECE: usize = 256 << 10;

/// A file in memory, for the bytes of one access at a time.
#[derive(Debug)]
pub(super) struct Scratch(File);

impl Scratch {
    pub(super) fn new() -> io::Result<Scratch> {
        let file = rustix::fs::memfd_create("rfs-paging-nbd", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Scratch(File::from(file)))
    }
}

/// Paged memory that several connections use.
#[derive(Debug)]
pub(super) struct SharedMemory {
    start: usize,
    len: usize,
    memory: Mutex<PagedMemory>,
}

impl SharedMemory {
    pub(super) fn new(mut memory: PagedMemory) -> SharedMemory {
        let (start, len) = (memory.as_mut_ptr() as usize, memory.len());
        SharedMemory { start, len, memory: Mutex::new(memory) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes from the memory.
    ///
    /// # Errors
    /// EFAULT if a page is lost, and EINVAL if the range is not in the memory.
    pub(super) fn read(&self, scratch: &Scratch, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let range = self.range(offset, out.len())?;
        for (piece, out) in range.step_by(PIECE).zip(out.chunks_mut(PIECE)) {
            transfer(out.len(), |done| {
                let memory = (piece + done) as *const libc::c_void;
                // SAFETY: The range is in the memory. The kernel reads it as a load does, and an
                // error is no signal.
                unsafe { libc::pwrite(scratch.0.as_raw_fd(), memory, out.len() - done, done as i64) }
            })?;
            scratch.0.read_exact_at(out, 0)?;
        }
        Ok(())
    }

    /// Copies bytes to the memory.
    ///
    /// # Errors
    /// As for [`read`](Self::read). A part of the bytes may be stored.
    pub(super) fn write(&self, scratch: &Scratch, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = self.range(offset, bytes.len())?;
        for (piece, bytes) in range.step_by(PIECE).zip(bytes.chunks(PIECE)) {
            scratch.0.write_all_at(bytes, 0)?;
            transfer(bytes.len(), |done| {
                let memory = (piece + done) as *mut libc::c_void;
                // SAFETY: As for `read`. Only connections use the memory, through system calls.
                unsafe { libc::pread(scratch.0.as_raw_fd(), memory, bytes.len() - done, done as i64) }
            })?;
        }
        Ok(())
    }

    /// Makes bytes zero. Whole pages use no memory any more.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and those of [`PagedMemory::discard`].
    pub(super) fn zero(&self, scratch: &Scratch, offset: u64, len: u32) -> io::Result<()> {
        let Range { start, end } = self.range(offset, len as usize)?;
        let (start, end) = (start - self.start, end - self.start);
        let pages = start.next_multiple_of(PAGE)..end / PAGE * PAGE;
        if pages.start >= pages.end {
            // The range may touch two pages.
            return [start..end.min(pages.start), start.max(pages.start)..end]
                .into_iter()
                .filter(|part| part.start < part.end)
                .try_for_each(|part| self.write(scratch, part.start as u64, &ZEROS[..part.len()]));
        }
        self.write(scratch, start as u64, &ZEROS[..pages.start - start])?;
        self.write(scratch, pages.end as u64, &ZEROS[..end - pages.end])?;
        self.memory.lock().discard(pages).map_err(io::Error::other)
    }

    /// Returns the addresses of a range.
    fn range(&self, offset: u64, len: usize) -> io::Result<Range<usize>> {
        let start = usize::try_from(offset).ok().filter(|start| *start <= self.len);
        let end = start.and_then(|start| start.checked_add(len)).filter(|end| *end <= self.len);
        let (Some(start), Some(end)) = (start, end) else { return Err(Errno::INVAL.into()) };
        Ok(self.start + start..self.start + end)
    }
}

/// Calls `copy` with the number of bytes that are done, until all are.
fn transfer(len: usize, copy: impl Fn(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match copy(done) {
            0 => return Err(Errno::FAULT.into()),
            count if count > 0 => done += count as usize,
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lender, LenderOptions, PagerOptions, RemotePager};

    #[test]
    fn accesses_that_are_longer_than_the_budget_keep_their_bytes() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let options = LenderOptions::new(16 << 20).allow_without_keys(true);
        let lender = Lender::listen(&[address], &options).expect("a lender");
        let pager = RemotePager::connect(lender.addresses(), PagerOptions::new(128 << 10)).expect("a pager");
        let (len, scratch) = (3 << 20, Scratch::new().expect("a file"));
        let memory = SharedMemory::new(pager.map(len).expect("memory"));
        let mut expected: Vec<u8> = (0..len).map(|at| (at / 8191 % 251) as u8).collect();
        let mut found = vec![0; len];
        memory.write(&scratch, 0, &expected).expect("stored");
        memory.read(&scratch, 0, &mut found).expect("loaded");
        assert!(found == expected);
        for range in [0..0, 1..2, 4095..4097, 4096..8192, 5000..8000, 100..len - 3, 8192..9000, 8000..8192] {
            memory.write(&scratch, 0, &expected).expect("stored");
            memory.zero(&scratch, range.start as u64, range.len() as u32).expect("zeroed");
            memory.read(&scratch, 0, &mut found).expect("loaded");
            let old = expected.clone();
            expected[range].fill(0);
            assert!(found == expected);
            expected = old;
        }
        for offset in [len as u64, u64::MAX] {
            assert!(memory.read(&scratch, offset, &mut [0]).is_err());
            assert!(memory.write(&scratch, offset, &[0]).is_err());
        }
    }
}
