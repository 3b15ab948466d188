//! Vectors of memory for system calls that read and write.
//!
//! # Concurrency
//! Plain values.

/// A pointer and a length for the kernel.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct IoVec(libc::iovec);

// SAFETY: an IoVec is an address for the kernel. The code that uses one states why the memory is
// valid.
unsafe impl Send for IoVec {}

impl IoVec {
    pub(crate) fn new(ptr: *mut u8, len: usize) -> IoVec {
        IoVec(libc::iovec { iov_base: ptr.cast(), iov_len: len })
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Removes the first `count` bytes.
    pub(crate) fn skip(&mut self, count: usize) {
        debug_assert!(count <= self.0.iov_len);
        self.0.iov_base = self.0.iov_base.wrapping_byte_add(count);
        self.0.iov_len -= count;
    }
}
