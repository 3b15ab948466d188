//! A buffer of each thread, for bytes that cannot go to their destination in one piece.
//!
//! # Concurrency
//! A value of the calling thread.

use std::cell::RefCell;

/// Maximum length in bytes that a thread keeps.
const KEPT: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` with the thread's buffer. A nested call gets a new one.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut buffer) => {
            let result = work(&mut buffer);
            if buffer.capacity() > KEPT {
                *buffer = Vec::new();
            }
            result
        }
        Err(_) => work(&mut Vec::new()),
    })
}
