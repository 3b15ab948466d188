//! Buffer for bytes received together with a header: further headers and payloads of small
//! frames.
//!
//! A reader of a header also asks for the following bytes. So a burst of small frames takes one
//! system call instead of one or two per frame. A short read means the socket is drained, which
//! saves the extra `recvmsg` that would return EAGAIN. Buffered bytes are copied once more, which
//! costs less than a system call for small payloads. Large payloads go mostly straight to their
//! destination. The buffer is a mapping of its own, which core dumps leave out.
//!
//! # Concurrency
//! No locks. The buffer belongs to the receiver of one queue pair.

use crate::mapping::{IoVec, Memory};

/// Buffer size in bytes for large payloads: twenty headers, or a call with a few hundred bytes.
/// More bytes would mostly be payload, which is better read straight into its destination.
const SMALL_BUFFER: usize = 1024;
/// Buffer size in bytes for small payloads, which holds the frames of a burst. A queue pair that
/// has received small payloads fills this size.
const LARGE_BUFFER: usize = 32 * 1024;
/// Maximum length in bytes of a small payload. Copying it takes a fraction of the microsecond
/// that a system call takes.
const SMALL_PAYLOAD: usize = 8 * 1024;
/// Number of consecutive small payloads after which more small payloads are expected.
const MIN_SMALL_ROW: u32 = 4;

#[derive(Debug)]
pub(crate) struct RecvBuffer {
    /// [`LARGE_BUFFER`] bytes. Pages come with their first use.
    memory: Memory,
    /// Number of consecutive small payloads.
    small_row: u32,
    /// Size of the next read in bytes.
    read_size: usize,
    taken: usize,
    end: usize,
    /// True if the socket was empty behind these bytes when they were read.
    last: bool,
}

impl RecvBuffer {
    pub(crate) fn new() -> RecvBuffer {
        RecvBuffer {
            memory: Memory::private_or_abort(LARGE_BUFFER),
            small_row: 0,
            read_size: SMALL_BUFFER,
            taken: 0,
            end: 0,
            last: false,
        }
    }

    /// Adapts the buffer size to the payload length of a received frame.
    pub(crate) fn adapt_to(&mut self, payload: usize) {
        match payload {
            0 => {}
            1..=SMALL_PAYLOAD => {
                self.small_row = self.small_row.saturating_add(1);
                if self.small_row >= MIN_SMALL_ROW {
                    self.read_size = LARGE_BUFFER;
                }
            }
            _ => (self.small_row, self.read_size) = (0, SMALL_BUFFER),
        }
    }

    /// Returns the target for further bytes. The buffer must be empty.
    pub(crate) fn vector(&mut self) -> IoVec {
        debug_assert!(self.is_empty(), "they would be overwritten");
        IoVec::new(self.memory.ptr(0), self.read_size)
    }

    /// Records that `count` bytes were read; `last` if the socket was then empty.
    pub(crate) fn filled(&mut self, count: usize, last: bool) {
        debug_assert!(count <= LARGE_BUFFER);
        (self.taken, self.end, self.last) = (0, count, last);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.end
    }

    /// Returns the unread bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.check(self.taken, self.end - self.taken);
        // SAFETY: the range is mapped while `self` exists. The kernel writes to it only through
        // `vector`, whose `&mut self` ends the slice.
        unsafe { std::slice::from_raw_parts(self.memory.ptr(self.taken), self.end - self.taken) }
    }

    /// Consumes the first `count` unread bytes.
    pub(crate) fn take(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.taken);
        self.taken += count;
    }

    /// Returns whether the socket was empty behind the buffered bytes. Returns true only once,
    /// because more bytes may have arrived since.
    pub(crate) fn take_last(&mut self) -> bool {
        std::mem::take(&mut self.last)
    }

    pub(crate) fn clear(&mut self) {
        self.filled(0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_read_size_follows_the_payload_sizes() {
        let mut buffer = RecvBuffer::new();
        let mut size_after = |payload| {
            buffer.adapt_to(payload);
            buffer.vector().len()
        };
        assert_eq!(
            [4096, 8192, 1, 8192].map(&mut size_after),
            [SMALL_BUFFER, SMALL_BUFFER, SMALL_BUFFER, LARGE_BUFFER]
        );
        assert_eq!(
            [8192, 0, 8193, 0, 1].map(&mut size_after),
            [LARGE_BUFFER, LARGE_BUFFER, SMALL_BUFFER, SMALL_BUFFER, SMALL_BUFFER]
        );
    }
}
