//! A file in memory, mapped shared: its bytes outlive the process.
//!
//! One process maps it at a time. The next process maps it after the end of the previous one, and
//! sees each of its stores.
//!
//! # Concurrency
//! Any thread. No locks: words are atomic, and the caller owns the bytes that it copies.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64},
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// The mapping, and its file.
#[derive(Debug)]
pub(super) struct Area {
    start: NonNull<u8>,
    len: usize,
    file: File,
}

// SAFETY: the mapping stays until the drop. Words are atomic, and each range of bytes has one
// owner at a time (`store_bytes`).
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Creates an area of `len` zeros. Pages that are never written take no memory.
    pub(super) fn create(len: usize) -> io::Result<Area> {
        let file = File::from(memfd_create("rfs-kept-state", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, len as u64)?;
        Area::map(file, len)
    }

    /// Maps an area that another process has created.
    ///
    /// # Errors
    /// The file is shorter, or the kernel refuses.
    pub(super) fn map(file: File, len: usize) -> io::Result<Area> {
        if file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too short"));
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, &file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { start, len, file })
    }

    /// Returns the file.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "inside the area");
        // SAFETY: the range is inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Returns a word of 64 bits. `offset` is a multiple of 8.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "an aligned word");
        // SAFETY: the word is inside the mapping and aligned, and all accesses are atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Returns a word of 32 bits. `offset` is a multiple of 4.
    pub(super) fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "an aligned word");
        // SAFETY: as for `word`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Copies bytes into the area. The caller owns the range.
    pub(super) fn store_bytes(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the range is inside the mapping, and no other thread uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out of the area. The caller owns the range.
    pub(super) fn load_bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let from = self.at(offset, len);
        let mut bytes = vec![0; len];
        // SAFETY: as for `store_bytes`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping outlives the area.
        unsafe { munmap(self.start.as_ptr().cast(), self.len).ok() };
    }
}
