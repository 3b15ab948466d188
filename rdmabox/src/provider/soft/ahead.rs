//! Bytes that came along with a header: further headers, and the payload of small frames.
//!
//! Whoever reads a header asks for these, too, so that a burst of small frames takes one system call and not one or two for each, and so that
//! less than was asked for says that the socket is empty, which another call would. What comes along is copied once more, which for a small payload
//! takes less than a call of its own. Of a long one little comes along; the rest goes straight to its place.

use super::socket::IoVec;

/// Twenty headers, or a call with a few hundred bytes: more than that is mostly payload, which is better read where it belongs, unless
/// payloads are small.
const NARROW: usize = 1024;
/// Room while they are: for as many frames as a burst of them has.
const WIDE: usize = 32 * 1024;
/// A payload up to this long is small: to copy it takes a fraction of the microsecond that a call takes.
const SMALL: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) struct Ahead {
    /// As long as it ever had to be: most queue pairs never have a payload.
    bytes: Box<[u8]>,
    /// Room to be offered the next time.
    room: usize,
    taken: usize,
    end: usize,
    /// There was nothing behind them when they were read.
    last: bool,
}

impl Ahead {
    pub(crate) fn new() -> Ahead {
        Ahead { bytes: vec![0; NARROW].into(), room: NARROW, taken: 0, end: 0, last: false }
    }

    /// A frame has a payload of so many bytes: others will be like it.
    pub(crate) fn expect_like(&mut self, payload: usize) {
        self.room = if payload <= SMALL { WIDE } else { NARROW };
    }

    /// Where further bytes go, while there are none.
    pub(crate) fn vector(&mut self) -> IoVec {
        debug_assert!(self.is_empty(), "they would be overwritten");
        if self.bytes.len() < self.room {
            self.bytes = vec![0; self.room].into();
        }
        IoVec::new(self.bytes.as_mut_ptr(), self.room)
    }

    /// So many have come; `last` if there was nothing behind them.
    pub(crate) fn filled(&mut self, count: usize, last: bool) {
        debug_assert!(count <= self.bytes.len());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_follows_the_payloads() {
        let mut ahead = Ahead::new();
        let mut room_after = |payload| {
            ahead.expect_like(payload);
            ahead.vector().len()
        };
        assert_eq!([4096, 8192, 8193, 1 << 20, 0].map(&mut room_after), [WIDE, WIDE, NARROW, NARROW, WIDE]);
    }

    #[test]
    fn it_is_small_until_a_payload_comes() {
        let mut ahead = Ahead::new();
        assert_eq!(ahead.vector().len(), NARROW);
        assert_eq!(ahead.bytes.len(), NARROW);
    }
}
