//! Bounds the memory of long requests.
//!
//! # Concurrency
//! Each connection waits for room in its own thread. The lock is a leaf.

use parking_lot::{Condvar, Mutex};

/// Longest request that needs no room, in bytes.
pub(super) const SHORT: usize = 1 << 20;
/// Bytes that longer requests may have together. The longest request has half of it.
const TOTAL: usize = 64 << 20;

/// The room that is left.
#[derive(Debug)]
pub(super) struct Room {
    left: Mutex<usize>,
    freed: Condvar,
}

/// Room for a request, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    room: &'a Room,
    len: usize,
}

impl Room {
    pub(super) fn new() -> Room {
        Room { left: Mutex::new(TOTAL), freed: Condvar::new() }
    }

    /// Waits until there is room for a request of `len` bytes. `None` if it needs none.
    pub(super) fn take(&self, len: usize) -> Option<Taken<'_>> {
        if len <= SHORT {
            return None;
        }
        let len = len.min(TOTAL);
        let mut left = self.left.lock();
        self.freed.wait_while(&mut left, |left| *left < len);
        *left -= len;
        Some(Taken { room: self, len })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.room.left.lock() += self.len;
        self.room.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_long_request_waits_for_the_end_of_others() {
        let room = Room::new();
        assert!(room.take(SHORT).is_none());
        let first = room.take(TOTAL / 2);
        let second = room.take(TOTAL / 2);
        let (send, receive) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let third = room.take(SHORT + 1);
                send.send("taken").expect("a receiver");
                drop(third);
            });
            assert_eq!(receive.recv_timeout(std::time::Duration::from_millis(50)).ok(), None);
            drop(first);
            assert_eq!(receive.recv(), Ok("taken"));
        });
        drop(second);
        assert_eq!(*room.left.lock(), TOTAL);
    }
}
