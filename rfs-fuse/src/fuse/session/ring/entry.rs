//! Memory that the kernel puts requests into and takes answers from.
//!
//! An entry is the kernel's from when it is registered or given back until a request has come, and this process's from then until the
//! answer is given back. Its memory is there as long as the process is: the kernel may write there for as long as a ring has the entry.

use std::{io, ptr::NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use zerocopy::{FromZeros, IntoBytes};

use super::abi::{EntryHeaders, EntryInOut, OutHeader};

/// The headers have a page of their own.
const HEADERS: usize = 4096;

/// One entry. Whoever has it and no request of it that is unanswered must not look at it: the kernel has.
#[derive(Debug)]
pub(super) struct Entry {
    headers: NonNull<EntryHeaders>,
    payload: NonNull<u8>,
    payload_len: usize,
    /// For the kernel, when it is registered.
    parts: [libc::iovec; 2],
}

// SAFETY: plain memory that is never unmapped; who may use it when is said by the state of its request.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Entry {
    /// Memory for requests and answers of so many bytes beyond the headers. It costs nothing before it is used.
    pub(super) fn new(payload_len: usize) -> io::Result<&'static Entry> {
        let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory at a place of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), HEADERS + payload_len, access, how) }?;
        // Data of files, which a core dump is not to have. A kernel that cannot leave it out dumps it.
        // SAFETY: the range is the mapping that has just been made; the advice changes no contents.
        unsafe { madvise(start, HEADERS + payload_len, Advice::LinuxDontDump) }.ok();
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: within the mapping.
        let payload = unsafe { start.add(HEADERS) };
        let part = |at: NonNull<u8>, len| libc::iovec { iov_base: at.as_ptr().cast(), iov_len: len };
        let parts = [part(start, size_of::<EntryHeaders>()), part(payload, payload_len)];
        Ok(Box::leak(Box::new(Entry { headers: start.cast(), payload, payload_len, parts })))
    }

    /// Where the parts are, as an address of two `iovec`s.
    pub(super) fn parts(&self) -> u64 {
        self.parts.as_ptr().addr() as u64
    }

    /// The headers of a request that has come, copied.
    pub(super) fn headers(&self) -> EntryHeaders {
        let mut headers = EntryHeaders::new_zeroed();
        // SAFETY: mapped, of that type, and the kernel does not write there while the request is here. Any bytes are valid.
        unsafe { self.headers.as_ptr().copy_to_nonoverlapping(&raw mut headers, 1) };
        headers
    }

    /// The payload of a request that has come.
    ///
    /// # Safety
    /// The request is not answered, and nobody has [`payload_mut`](Self::payload_mut), while the slice is in use.
    pub(super) unsafe fn payload(&self, len: usize) -> &[u8] {
        // SAFETY: mapped; nobody writes there, as the caller says.
        unsafe { std::slice::from_raw_parts(self.payload.as_ptr(), len.min(self.payload_len)) }
    }

    /// Room for the payload of an answer.
    ///
    /// # Safety
    /// The request is not answered, and nobody else looks at its payload, while the slice is in use.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn payload_mut(&self, len: usize) -> &mut [u8] {
        // SAFETY: mapped; it is this one's alone, as the caller says.
        unsafe { std::slice::from_raw_parts_mut(self.payload.as_ptr(), len.min(self.payload_len)) }
    }

    /// How long a payload can be.
    pub(super) fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Puts the headers of an answer there.
    ///
    /// # Safety
    /// The request is answered with this, once, and given back only afterwards.
    pub(super) unsafe fn set_headers(&self, out: OutHeader, entry: EntryInOut) {
        let mut headers = self.headers();
        headers.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        headers.entry = entry;
        // SAFETY: mapped, of that type; the kernel does not look before it is given back.
        unsafe { self.headers.as_ptr().write(headers) };
    }
}
