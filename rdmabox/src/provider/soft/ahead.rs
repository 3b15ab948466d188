//! Bytes that came along with a header: further headers, and the payload of small frames.
//!
//! Whoever reads a header asks for these, too, so that a burst of small frames takes one system call and not one or two for each, and so that
//! less than was asked for says that the socket is empty, which another call would. What of a long payload has come along is copied once more; the
//! rest goes straight to its place.

use super::socket::IoVec;

/// Twenty headers, or a call with a few hundred bytes: more than that is mostly payload, which is better read where it belongs.
const ROOM: usize = 1024;

#[derive(Debug)]
pub(crate) struct Ahead {
    bytes: [u8; ROOM],
    taken: usize,
    end: usize,
    /// There was nothing behind them when they were read.
    last: bool,
}

impl Ahead {
    pub(crate) fn new() -> Ahead {
        Ahead { bytes: [0; ROOM], taken: 0, end: 0, last: false }
    }

    /// Where further bytes go, while there are none.
    pub(crate) fn vector(&mut self) -> IoVec {
        debug_assert!(self.is_empty(), "they would be overwritten");
        IoVec::new(self.bytes.as_mut_ptr(), ROOM)
    }

    /// So many have come; `last` if there was nothing behind them.
    pub(crate) fn filled(&mut self, count: usize, last: bool) {
        debug_assert!(count <= ROOM);
        (self.taken, self.end, self.last) = (0, count, last);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.end
    }

    /// Those that are there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.taken..self.end]
    }

    /// The first `count` of them are used.
    pub(crate) fn take(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.taken);
        self.taken += count;
    }

    /// Whether the socket was empty behind the last of them. Told once: by the next time more may have come.
    pub(crate) fn was_last(&mut self) -> bool {
        std::mem::take(&mut self.last)
    }

    pub(crate) fn clear(&mut self) {
        self.filled(0, false);
    }
}
