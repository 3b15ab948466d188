//! The offset of an open file description: in the library, or in the kernel.
//!
//! A description begins with its offset in the kernel. The library takes the offset over with the
//! first carried `read` or `write`. It gives the offset back for good before another process may
//! share the description.
//!
//! # Concurrency
//! The lock orders reads and writes at the offset, as the kernel's lock does. A signal handler that
//! interrupts the holder does not wait for it.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::guard;

/// Looks at a held lock before the thread yields, and again before it sleeps.
const SPINS: u32 = 100;
/// Pause between later looks.
const PAUSE: Duration = Duration::from_micros(50);
const FRESH: u64 = u64::MAX;
const KERNEL: u64 = u64::MAX - 1;

/// Where the offset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the kernel, until the library takes it over.
    Fresh,
    /// In the kernel, for good.
    Kernel,
    /// In the library.
    Library(u64),
}

/// The offset of a description.
#[derive(Debug)]
pub(crate) struct Position {
    /// The thread that holds the lock, or 0. The lock and its holder are one word, so a signal
    /// handler always knows whether it has interrupted the holder.
    holder: AtomicUsize,
    place: AtomicU64,
}

/// The lock of a position.
pub(crate) struct Held<'p> {
    position: &'p Position,
    /// False in a signal handler that has interrupted the holder.
    releases: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.releases {
            self.position.holder.store(0, Ordering::Release);
        }
    }
}

impl Position {
    pub(crate) fn new() -> Position {
        Position { holder: AtomicUsize::new(0), place: AtomicU64::new(FRESH) }
    }

    /// Takes the lock. Threads seldom share an offset, so a waiting thread only looks again.
    pub(crate) fn hold(&self) -> Held<'_> {
        let thread = guard::thread();
        for attempt in 0_u32.. {
            match self.holder.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(holder) if holder == thread => return Held { position: self, releases: false },
                Err(_) if attempt < SPINS => std::hint::spin_loop(),
                Err(_) if attempt < 2 * SPINS => thread::yield_now(),
                Err(_) => thread::sleep(PAUSE),
            }
        }
        Held { position: self, releases: true }
    }

    /// Returns where the offset is.
    pub(crate) fn place(&self) -> Place {
        match self.place.load(Ordering::Acquire) {
            FRESH => Place::Fresh,
            KERNEL => Place::Kernel,
            offset => Place::Library(offset),
        }
    }
}

impl Held<'_> {
    /// Returns where the offset is.
    pub(crate) fn place(&self) -> Place {
        self.position.place()
    }

    /// Keeps the offset in the library.
    pub(crate) fn set(&self, offset: u64) {
        debug_assert!(offset < KERNEL);
        self.position.place.store(offset, Ordering::Release);
    }

    /// Moves the offset on by `len`, before a write. Returns the offset before, or `None` if the
    /// kernel has it.
    pub(crate) fn reserve(&self, len: u64) -> Option<u64> {
        let end = |offset: u64| (offset < KERNEL).then(|| offset.saturating_add(len).min(i64::MAX as u64));
        self.position.place.fetch_update(Ordering::AcqRel, Ordering::Acquire, end).ok()
    }

    /// Leaves the offset to the kernel for good. Returns the offset that the kernel has to get.
    pub(crate) fn give_back(&self) -> Option<u64> {
        match self.position.place.swap(KERNEL, Ordering::AcqRel) {
            FRESH | KERNEL => None,
            offset => Some(offset),
        }
    }

    /// Moves the offset from `from` to `to` after an operation. Returns the distance that the
    /// kernel's offset has to move if a signal handler gave the offset back meanwhile.
    pub(crate) fn advance(&self, from: u64, to: u64) -> Option<i64> {
        let place = &self.position.place;
        match place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => None,
            Err(KERNEL) => Some(to.wrapping_sub(from) as i64),
            // A signal handler has moved the offset.
            Err(_) => {
                place.fetch_add(to.wrapping_sub(from), Ordering::AcqRel);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_taken_over_and_given_back_once() {
        let position = Position::new();
        let held = position.hold();
        assert_eq!((held.place(), held.give_back()), (Place::Fresh, None));
        assert_eq!(held.place(), Place::Kernel);
        drop(held);
        let position = Position::new();
        let held = position.hold();
        held.set(7);
        assert_eq!(held.advance(7, 9), None);
        assert_eq!(held.place(), Place::Library(9));
        assert_eq!((held.give_back(), held.give_back()), (Some(9), None));
        assert_eq!(held.advance(9, 12), Some(3));
    }

    /// Catches a signal handler that waits for the thread that it has interrupted.
    #[test]
    fn a_handler_of_the_holder_does_not_wait() {
        let position = Position::new();
        let held = position.hold();
        held.set(5);
        let handler = position.hold();
        handler.set(6);
        drop(handler);
        assert_eq!(held.advance(5, 15), None);
        assert_eq!(held.place(), Place::Library(16));
        // A write behind that of the handler.
        assert_eq!(held.reserve(10), Some(16));
        assert_eq!(held.place(), Place::Library(26));
    }
}
