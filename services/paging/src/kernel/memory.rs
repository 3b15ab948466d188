//! Anonymous memory for a region, and the ways in which its pages leave it.
//!
//! # Concurrency
//! The caller ensures that no thread uses memory that is unmapped or discarded.

use std::{ffi::c_void, io, ptr};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Maps `len` bytes of private anonymous memory without huge pages. A child of `fork` does not
/// get it, because its pages could not fault there.
pub(crate) fn map(len: usize) -> io::Result<usize> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: The kernel chooses an address that no mapping uses.
    let start =
        unsafe { mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
    let advise = |advice| {
        // SAFETY: The range was mapped above, and has no contents yet.
        unsafe { madvise(start, len, advice) }
    };
    let advised = match advise(Advice::LinuxNoHugepage) {
        // A kernel without huge pages has none to keep away.
        Err(rustix::io::Errno::INVAL) => Ok(()),
        other => other,
    };
    if let Err(error) = advised.and_then(|()| advise(Advice::LinuxDontFork)) {
        // SAFETY: No reference to the range exists yet.
        unsafe { munmap(start, len)? };
        return Err(error.into());
    }
    Ok(start as usize)
}

/// Unmaps a region.
///
/// # Safety
/// No thread uses the range any more.
pub(crate) unsafe fn unmap(start: usize, len: usize) {
    // SAFETY: as the caller promises.
    if let Err(error) = unsafe { munmap(start as *mut c_void, len) } {
        log::error!("munmap of {len} bytes at {start:#x} failed: {error}");
    }
}

/// Frees the pages of a range. The next access faults.
///
/// # Safety
/// The range belongs to a region, and the pager has the bytes that are still needed.
pub(crate) unsafe fn discard(start: usize, len: usize) -> io::Result<()> {
    // SAFETY: as the caller promises.
    unsafe { madvise(start as *mut c_void, len, Advice::LinuxDontNeed) }.map_err(io::Error::from)
}

/// Replaces a page by one whose accesses raise SIGBUS: a mapping beyond the end of an empty file.
/// For kernels without `UFFDIO_POISON`.
///
/// # Safety
/// The page belongs to a region, and its bytes are lost.
pub(crate) unsafe fn replace_by_hole(page: usize, len: usize) -> io::Result<()> {
    let file = rustix::fs::memfd_create("rfs-paging-lost", rustix::fs::MemfdFlags::CLOEXEC)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: The page is part of a region, so nothing else is replaced.
    unsafe { mmap(page as *mut c_void, len, prot, MapFlags::SHARED | MapFlags::FIXED, &file, 0)? };
    Ok(())
}
