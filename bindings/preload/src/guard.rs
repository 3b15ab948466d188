//! Notes that a thread is inside the library.
//!
//! A signal handler may interrupt a thread in a call of the native API, with its locks held. Calls
//! of the handler go to the kernel then. [`enter`] tells them apart.
//!
//! # Concurrency
//! Per thread.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Ends the stay inside the library when it is dropped.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Enters the library. Returns `None` if this thread is inside already.
#[inline]
pub(crate) fn enter() -> Option<Inside> {
    let is_outside = !INSIDE.get();
    is_outside.then(|| {
        INSIDE.set(true);
        Inside(())
    })
}

/// Keeps this thread inside the library for good.
pub(crate) fn stay() {
    INSIDE.set(true);
}

/// Returns true if this thread is inside the library.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Returns a number of this thread, which no other living thread has. It is not 0.
pub(crate) fn thread() -> usize {
    INSIDE.with(|inside| std::ptr::from_ref(inside) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_once() {
        let inside = enter().expect("outside");
        assert!(enter().is_none());
        assert!(is_inside());
        drop(inside);
        assert!(!is_inside() && enter().is_some());
        let here = thread();
        assert!(here != 0 && here == thread());
        assert_ne!(std::thread::spawn(thread).join().expect("a number"), here);
    }
}
