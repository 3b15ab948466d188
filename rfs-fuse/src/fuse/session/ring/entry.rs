//! Memory of a ring that the kernel writes requests to and reads answers from.
//!
//! An entry belongs to the kernel from its registration until a request arrives. It belongs to
//! this process until the answer is given back. The memory is never freed, because the kernel may
//! write to it as long as a ring has the entry.
//!
//! # Concurrency
//! The thread of the ring, and the thread that answers the request. No locks: the state of the
//! request says which may access the memory.

use std::{io, ptr::NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use zerocopy::{FromZeros, IntoBytes};

use super::abi::{EntryHeaders, EntryInOut};
use crate::fuse::session::wire::abi::OutHeader;

/// Length of the headers, which have a page of their own.
const HEADERS: usize = 4096;

/// An entry. Only the holder of an unanswered request may access its memory.
#[derive(Debug)]
pub(in crate::fuse::session) struct Entry {
    headers: NonNull<EntryHeaders>,
    payload: NonNull<u8>,
    payload_len: usize,
    /// Addresses of the parts, which the kernel reads at registration.
    parts: [libc::iovec; 2],
}

// SAFETY: plain memory that is never unmapped. The state of the request says which thread may
// access it.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Entry {
    /// Allocates an entry with a payload of this length. Pages are allocated at first use.
    pub(super) fn new(payload_len: usize) -> io::Result<&'static Entry> {
        let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), HEADERS + payload_len, access, how) }?;
        // File data do not belong into a core dump. If the kernel refuses the advice, they are
        // dumped.
        // SAFETY: the range is the new mapping. The advice changes no contents.
        unsafe { madvise(start, HEADERS + payload_len, Advice::LinuxDontDump) }.ok();
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: within the mapping.
        let payload = unsafe { start.add(HEADERS) };
        let part = |at: NonNull<u8>, len| libc::iovec { iov_base: at.as_ptr().cast(), iov_len: len };
        let parts = [part(start, size_of::<EntryHeaders>()), part(payload, payload_len)];
        Ok(Box::leak(Box::new(Entry { headers: start.cast(), payload, payload_len, parts })))
    }

    /// Returns the address of the two `iovec`s of the parts.
    pub(super) fn parts(&self) -> u64 {
        self.parts.as_ptr().addr() as u64
    }

    /// Copies the headers of an arrived request.
    pub(super) fn headers(&self) -> EntryHeaders {
        let mut headers = EntryHeaders::new_zeroed();
        // SAFETY: mapped memory of that type. The kernel does not write to it while the request is
        // here. All bytes are valid.
        unsafe { self.headers.as_ptr().copy_to_nonoverlapping(&raw mut headers, 1) };
        headers
    }

    /// Returns the payload of an arrived request.
    ///
    /// # Safety
    /// The request has no answer, and no [`payload_mut`](Self::payload_mut) exists, while the slice
    /// is in use.
    pub(super) unsafe fn payload(&self, len: usize) -> &[u8] {
        // SAFETY: mapped memory. The caller guarantees that no thread writes to it.
        unsafe { std::slice::from_raw_parts(self.payload.as_ptr(), len.min(self.payload_len)) }
    }

    /// Returns the memory for the payload of an answer.
    ///
    /// # Safety
    /// The request has no answer, and no other slice of its payload exists, while the slice is in
    /// use.
    #[allow(clippy::mut_from_ref)]
    pub(in crate::fuse::session) unsafe fn payload_mut(&self, len: usize) -> &mut [u8] {
        // SAFETY: mapped memory. The caller guarantees that the slice is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.payload.as_ptr(), len.min(self.payload_len)) }
    }

    /// Returns the address of the payload.
    pub(in crate::fuse::session) fn payload_start(&self) -> *mut u8 {
        self.payload.as_ptr()
    }

    /// Returns the maximum length of a payload.
    pub(in crate::fuse::session) fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Writes the headers of an answer.
    ///
    /// # Safety
    /// This is the request's only answer, and the entry is given back afterwards.
    pub(super) unsafe fn set_headers(&self, out: OutHeader, entry: EntryInOut) {
        let mut headers = self.headers();
        headers.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        headers.entry = entry;
        // SAFETY: mapped memory of that type. The kernel does not read it before the entry is given
        // back.
        unsafe { self.headers.as_ptr().write(headers) };
    }
}
