//! Bytes that came along with a header: further headers, and the payload of small frames.
//!
//! Whoever reads a header asks for these, too, so that a burst of small frames takes one system call and not one or two for each, and so that
//! less than was asked for says that the socket is empty, which another call would. What comes along is copied once more, which for a small payload
//! takes less than a call of its own. Of a long one little comes along; the rest goes straight to its place.

use super::socket::IoVec;

/// Twenty headers, or a call with a few hundred bytes: more than that is mostly payload, which is better read where it belongs, unless
/// payloads are small.
const NARROW: usize = 1024;
/// Room while they are: for as many frames as a burst of them has. So much memory more has each queue pair that ever had some.
const WIDE: usize = 32 * 1024;
/// A payload up to this long is small: to copy it takes a fraction of the microsecond that a call takes.
const SMALL: usize = 8 * 1024;
/// So many in a row are small before others are expected to be.
const ROW: u32 = 4;

#[derive(Debug)]
pub(crate) struct Ahead {
    /// As long as it ever had to be.
    bytes: Box<[u8]>,
    /// Small payloads in a row.
    row: u32,
    /// Room to be offered the next time.
    room: usize,
    taken: usize,
    end: usize,
    /// There was nothing behind them when they were read.
    last: bool,
}

impl Ahead {
    pub(crate) fn new() -> Ahead {
        Ahead { bytes: vec![0; NARROW].into(), row: 0, room: NARROW, taken: 0, end: 0, last: false }
    }

    /// A frame has a payload of so many bytes, if any: others will be like it.
    pub(crate) fn expect_like(&mut self, payload: usize) {
        match payload {
            0 => {}
            1..=SMALL => {
                self.row = self.row.saturating_add(1);
                if self.row >= ROW {
                    self.room = WIDE;
                }
            }
            _ => (self.row, self.room) = (0, NARROW),
        }
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
        assert_eq!([4096, 8192, 1, 8192].map(&mut room_after), [NARROW, NARROW, NARROW, WIDE]);
        assert_eq!([8192, 0, 8193, 0, 1].map(&mut room_after), [WIDE, WIDE, NARROW, NARROW, NARROW]);
    }

    #[test]
    fn it_is_as_long_as_it_had_to_be() {
        let mut ahead = Ahead::new();
        assert_eq!((ahead.vector().len(), ahead.bytes.len()), (NARROW, NARROW));
        (0..ROW).for_each(|_| ahead.expect_like(1));
        assert_eq!((ahead.vector().len(), ahead.bytes.len()), (WIDE, WIDE));
        ahead.expect_like(1 << 20);
        assert_eq!((ahead.vector().len(), ahead.bytes.len()), (NARROW, WIDE));
    }
}
