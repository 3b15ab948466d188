//! Bounds the memory of incomplete commands and unsent answers of all connections.
//!
//! # Concurrency
//! All workers take from one number.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a buffer may have without room, for each connection.
pub(super) const SMALL: usize = 2048;
/// Bytes of all larger buffers together.
const TOTAL: usize = 64 << 20;

/// The room that is left, in bytes.
#[derive(Debug)]
pub(super) struct Room(AtomicUsize);

impl Room {
    pub(super) fn new() -> Room {
        Room(AtomicUsize::new(TOTAL))
    }

    /// Changes the room that a buffer has to the need of `len` bytes. Returns false if there is
    /// none; then the buffer keeps the room that it has.
    pub(super) fn resize(&self, held: &mut usize, len: usize) -> bool {
        let wanted = if len <= SMALL { 0 } else { len };
        if wanted > *held {
            let more = wanted - *held;
            let take = |left: usize| left.checked_sub(more);
            if self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                return false;
            }
        } else {
            self.0.fetch_add(*held - wanted, Ordering::Relaxed);
        }
        *held = wanted;
        true
    }

    /// Returns true if no buffer has room.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.0.load(Ordering::Relaxed) == TOTAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_together_have_a_limit() {
        let room = Room::new();
        let (mut first, mut second) = (0, 0);
        assert!(room.resize(&mut first, TOTAL - 5000) && room.resize(&mut second, 5000));
        let mut third = 0;
        assert!(room.resize(&mut third, SMALL) && third == 0);
        assert!(!room.resize(&mut third, SMALL + 1) && third == 0);
        assert!(!room.resize(&mut second, 5001) && second == 5000);
        assert!(room.resize(&mut second, 3000));
        for held in [&mut first, &mut second, &mut third] {
            assert!(room.resize(held, 0));
        }
        assert!(room.is_unused());
    }
}
