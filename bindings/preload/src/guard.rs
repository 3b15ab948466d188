//! Notes that a thread is inside the library.
//!
//! A signal handler may interrupt a thread in a call of the native API, with its locks held. Calls
//! of the handler go to the kernel then. [`enter`] tells them apart.
//!
//! # Concurrency
//! Per thread.

use std::cell::Cell;

thread_local! {
    /// 0 outside, 1 inside, or the address of the position whose lock the thread holds.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Ends the stay inside the library when it is dropped.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(0);
    }
}

/// Enters the library. Returns `None` if this thread is inside already.
#[inline]
pub(crate) fn enter() -> Option<Inside> {
    let is_outside = INSIDE.get() == 0;
    is_outside.then(|| {
        INSIDE.set(1);
        Inside(())
    })
}

/// Keeps this thread inside the library for good.
pub(crate) fn stay() {
    INSIDE.set(1);
}

/// Returns true if this thread is inside the library.
pub(crate) fn is_inside() -> bool {
    INSIDE.get() != 0
}

/// Notes the position whose lock this thread holds. Returns the state before, for [`restore`].
pub(crate) fn set_position(address: usize) -> usize {
    INSIDE.replace(address)
}

/// Restores the state before [`set_position`].
pub(crate) fn restore(before: usize) {
    INSIDE.set(before);
}

/// Returns true if this thread holds the lock of the position at this address.
pub(crate) fn holds(address: usize) -> bool {
    INSIDE.get() == address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_once() {
        let inside = enter().expect("outside");
        assert!(enter().is_none());
        let before = set_position(64);
        assert!(holds(64) && !holds(128));
        restore(before);
        assert!(is_inside() && !holds(64));
        drop(inside);
        let before = set_position(64);
        restore(before);
        assert!(!is_inside() && enter().is_some());
    }
}
