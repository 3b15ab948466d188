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
    // SAFETY: The range was mapped above, and has no contents yet.
    if let Err(error) = unsafe { advise(start, len) } {
        // SAFETY: No reference to the range exists yet.
        unsafe { munmap(start, len)? };
        return Err(error);
    }
    Ok(start as usize)
}

/// Maps a part of a region anew, as [`map`] does.
///
/// # Safety
/// The part belongs to a region, and its bytes are not needed.
pub(crate) unsafe fn map_again(start: usize, len: usize) -> io::Result<()> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let start = start as *mut c_void;
    // SAFETY: as the caller promises.
    unsafe {
        mmap_anonymous(start, len, prot, flags)?;
        advise(start, len)
    }
}

/// Keeps huge pages and children of `fork` away from a range.
///
/// # Safety
/// The range is mapped and has no contents.
unsafe fn advise(start: *mut c_void, len: usize) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { madvise(start, len, Advice::LinuxNoHugepage) } {
        // A kernel without huge pages has none to keep away.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    // SAFETY: as the caller promises.
    unsafe { madvise(start, len, Advice::LinuxDontFork) }.map_err(io::Error::from)
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
