//! Callbacks of callers, which run on any thread that polls.
//!
//! # Concurrency
//! State of each thread; no locks.

use std::cell::Cell;

use crate::{failure::contain, sync::thread_local};

thread_local! {
    /// True while this thread runs a callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns true while this thread runs a callback. A callback may delay all completions, so it
/// must not wait for one.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

/// Runs caller code on a thread that may be serving other callers. Contains its panics.
pub(crate) fn as_callback(callback: impl FnOnce()) {
    let outer = IN_CALLBACK.with(|inside| inside.replace(true));
    if let Err(panic) = contain(callback) {
        log::error!("a callback panicked: {panic}");
    }
    IN_CALLBACK.with(|inside| inside.set(outer));
}
