//! Reserves the pages of shareable memory before their use.
//!
//! Memory in a file is sparse at first. If the kernel cannot allocate a page at its first use, it
//! sends SIGBUS. [`Memory::reserve`] allocates all pages in advance and returns an error instead.
//!
//! # Concurrency
//! Any thread may call it. Existing bytes stay, so other threads may use the memory in the
//! meantime.

use std::{io, os::fd::AsRawFd};

use super::{
    error::MemoryError,
    memory::{HUGE, Memory, pages::populate},
};

/// Bytes per call. A signal interrupts a step, and the retry repeats only this step.
const STEP: usize = 64 << 20;

impl Memory {
    /// Reserves all pages of shareable memory, so that no later access lacks a page. Pages stay
    /// unallocated if the kernel can guarantee them without an allocation. Private memory has
    /// nothing to reserve: the call succeeds and does nothing.
    ///
    /// # Errors
    /// [`MemoryError::Os`] with the kind `StorageFull` or `OutOfMemory` if the file system or the
    /// system has too little space. The kind is `Unsupported` if the file system cannot reserve
    /// space. Pages reserved before the error stay reserved.
    pub fn reserve(&self) -> Result<(), MemoryError> {
        self.reserve_range(0, self.len())
    }

    /// Reserves the pages of a range; see [`reserve`](Self::reserve).
    ///
    /// # Errors
    /// The errors of `reserve`.
    ///
    /// # Panics
    /// If the range lies outside the memory.
    pub fn reserve_range(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.check(offset, len);
        let Some(fd) = self.fd() else { return Ok(()) };
        let huge = self.len() >= HUGE && gives_huge_pages();
        let end = offset + len;
        for start in (offset..end).step_by(STEP) {
            let len = STEP.min(end - start);
            // fallocate allocates small pages even if mappings can request huge pages.
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
    fn all_pages_are_reserved_and_bytes_stay() {
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

    /// Accounting of memory that was never written depends on which pages are present.
    #[test]
    fn reserved_pages_are_untouched_until_they_are_written() {
        if gives_huge_pages() {
            eprintln!("not run: huge pages are present when they are reserved");
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
