//! The offset of an open file description: in the library, or in the kernel.
//!
//! A description begins with its offset in the kernel. The library takes the offset over with the
//! first carried `read` or `write`. It gives the offset back for good before another process may
//! share the description.
//!
//! # Concurrency
//! The lock orders reads and writes at the offset, as the kernel's lock does. A signal handler that
//! interrupts the holder does not wait for it.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::guard;

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
    lock: Mutex<()>,
    place: AtomicU64,
}

/// The lock of a position.
pub(crate) struct Held<'p> {
    position: &'p Position,
    before: usize,
    // Absent in a signal handler that has interrupted the holder.
    _lock: Option<MutexGuard<'p, ()>>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        guard::restore(self.before);
    }
}

impl Position {
    pub(crate) fn new() -> Position {
        Position { lock: Mutex::new(()), place: AtomicU64::new(FRESH) }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Takes the lock.
    pub(crate) fn hold(&self) -> Held<'_> {
        let _lock = if guard::holds(self.address()) { None } else { Some(self.lock.lock()) };
        Held { position: self, before: guard::set_position(self.address()), _lock }
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
    }
}
