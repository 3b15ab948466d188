//! Buffers of each thread for requests and replies, so that calls do not allocate.
//!
//! # Concurrency
//! One set of buffers for each thread.

use std::cell::Cell;

/// Buffers of a thread.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) request: Vec<u8>,
    pub(super) reply: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Runs a function with the buffers of this thread. A function that runs inside another one gets
/// new buffers.
pub(super) fn with_scratch<R>(run: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = run(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}
