//! The receive buffer of a thread.
//!
//! Core dumps do not contain it. For a mount that outlives its process, all its pages are in memory
//! from the beginning. A process that is killed while the kernel copies a request into absent pages
//! would make the kernel fail the request.
//!
//! # Concurrency
//! One thread.

use std::{io, ptr::NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes beside the data of a write: headers, and values of extended attributes.
const MORE: usize = 128 * 1024;

#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer has one owner.
unsafe impl Send for ReceiveBuffer {}

impl ReceiveBuffer {
    /// Allocates a buffer for writes of up to `max_write` bytes. `populated`: its pages are in
    /// memory from now on.
    pub(super) fn new(max_write: usize, populated: bool) -> io::Result<ReceiveBuffer> {
        let len = (max_write + MORE).next_multiple_of(MORE);
        let populate = if populated { MapFlags::POPULATE } else { MapFlags::empty() };
        let flags = MapFlags::PRIVATE | populate;
        // SAFETY: the kernel chooses the address of the new mapping.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        // A kernel that refuses the advice dumps the memory.
        // SAFETY: it is this mapping, and the advice changes no contents.
        unsafe { madvise(start, len, Advice::LinuxDontDump).ok() };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(ReceiveBuffer { start, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is initialized with zeros, and borrowed with the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping outlives the buffer.
        unsafe { munmap(self.start.as_ptr().cast(), self.len).ok() };
    }
}
