//! Space of shareable memory, taken before it is used.
//!
//! Memory in a file is sparse at first. If a page cannot be had at its first use, the kernel sends
//! SIGBUS. [`Memory::reserve`] takes all pages at once, and fails with an error instead.
//!
//! # Concurrency
//! Any thread. Bytes that are there stay, so that others may use the memory meanwhile.

use std::{io, os::fd::AsRawFd};

use super::{
    Memory, MemoryError,
    mapping::{HUGE, populate},
};

/// Bytes at a time: a signal interrupts a step, and the next attempt begins with the same step.
const STEP: usize = 64 << 20;

impl Memory {
    /// Takes all pages of shareable memory from the system, so that no later access lacks one. Pages
    /// stay untouched where the kernel can promise them without that.
    ///
    /// # Errors
    /// `StorageFull` or `OutOfMemory` if the file system or the system has too little, `Unsupported` if
    /// the file system cannot promise space. Pages that were taken until then stay.
    pub fn reserve(&self) -> Result<(), MemoryError> {
        self.reserve_range(0, self.len())
    }

    /// As [`reserve`](Self::reserve), for a range.
    ///
    /// # Errors
    /// As `reserve`.
    ///
    /// # Panics
    /// The range lies outside of the memory.
    pub fn reserve_range(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.check(offset, len);
        let Some(fd) = self.fd() else { return Ok(()) };
        let huge = self.len() >= HUGE && gives_huge_pages();
        let end = offset + len;
        for start in (offset..end).step_by(STEP) {
            let len = STEP.min(end - start);
            // fallocate takes small pages where huge ones are given to mappings that ask.
            let done = match huge {
                true => populate(self, start, len),
                false => allocate(fd.as_raw_fd(), start, len),
            };
            done.map_err(|source| MemoryError::Os { what: "reserving memory", source })?;
        }
        Ok(())
    }
}

fn allocate(fd: i32, start: usize, len: usize) -> io::Result<()> {
    loop {
        // SAFETY: plain fallocate on an open descriptor.
        if unsafe { libc::fallocate(fd, 0, start as libc::off_t, len as libc::off_t) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Returns true if the system gives huge pages to shared memory on request.
fn gives_huge_pages() -> bool {
    let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    modes.is_ok_and(|modes| {
        ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|m| modes.contains(m))
    })
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn all_pages_are_taken_and_bytes_stay() {
        let memory = Memory::shared("test", 3 << 20).unwrap();
        memory.write(5000, b"kept");
        memory.reserve().unwrap();
        let file = File::from(memory.peer_fd(true).unwrap());
        assert!(file.metadata().unwrap().blocks() * 512 >= 3 << 20);
        let mut bytes = [0; 4];
        memory.read(5000, &mut bytes);
        assert_eq!(&bytes, b"kept");
        Memory::private(4096).unwrap().reserve().unwrap();
    }

    /// The account of memory that was never touched goes by what is present.
    #[test]
    fn reserved_pages_are_untouched_until_they_are_written() {
        if gives_huge_pages() {
            eprintln!("skipped: huge pages are present when they are reserved");
            return;
        }
        let memory = Memory::shared("test", 1 << 20).unwrap();
        memory.reserve().unwrap();
        let mut residency = [0; 256];
        memory.residency(0, &mut residency);
        assert_eq!(residency, [0; 256]);
        memory.write(8192, &[1]);
        memory.zero_present(0, 1 << 20);
        memory.residency(0, &mut residency);
        assert_eq!(residency.iter().filter(|page| **page == 1).count(), 1);
        let mut byte = [1];
        memory.read(8192, &mut byte);
        assert_eq!(byte, [0]);
    }
}
