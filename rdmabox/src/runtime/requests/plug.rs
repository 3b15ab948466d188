//! Plugs the merge queues while a thread starts several requests, like `blk_plug`.
//!
//! Requests started inside [`Runtime::together`] are only queued. The thread becomes the combiner
//! after the last one, so the requests merge and chain. Another thread that combines meanwhile
//! posts the queued requests as well. The plug is flushed before the thread waits.
//!
//! Plugs of several sessions nest, and only the innermost one holds requests back. A transfer that
//! an outer plug holds back, or the plug of another thread, is posted when its owner waits for it.
//!
//! # Concurrency
//! The plug is thread-local. It takes no locks of its own.

use std::cell::Cell;

use crate::{
    runtime::{queue::CopyBudget, state::Runtime},
    sync::thread_local,
};

thread_local! {
    static PLUGGED: Cell<PluggedRequests> = const { Cell::new(PluggedRequests { runtime: 0, directions: [false; 2] }) };
}

/// Requests that a thread has queued and not posted yet.
#[derive(Clone, Copy, Debug)]
struct PluggedRequests {
    /// Address of the runtime; 0 if the thread has no plug.
    runtime: usize,
    /// Directions that have queued requests.
    directions: [bool; 2],
}

/// Flushes the plug when it is dropped, also on a panic.
struct Plug<'a> {
    runtime: &'a Runtime,
    copies: &'a CopyBudget,
    outer: PluggedRequests,
}

impl Drop for Plug<'_> {
    fn drop(&mut self) {
        let held = PLUGGED.with(|held| held.replace(self.outer));
        self.runtime.flush_directions(held.directions, self.copies);
    }
}

impl Runtime {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs `start`, then posts the requests that this thread started in it.
    pub(crate) fn together<R>(&self, start: impl FnOnce() -> R) -> R {
        self.together_within(&CopyBudget::unlimited(), start)
    }

    /// Runs `start` as [`together`](Self::together) does, and posts within a budget.
    pub(super) fn together_within<R>(&self, copies: &CopyBudget, start: impl FnOnce() -> R) -> R {
        let own = PluggedRequests { runtime: self.address(), directions: [false; 2] };
        let _together = Plug { runtime: self, copies, outer: PLUGGED.with(|held| held.replace(own)) };
        start()
    }

    /// Runs `start` like [`together`](Self::together), unless this thread has a plug already.
    pub(crate) fn plugged<R>(&self, start: impl FnOnce() -> R) -> R {
        if self.has_plug() { start() } else { self.together(start) }
    }

    /// Posts the plugged requests of this thread, which is about to wait.
    pub(crate) fn flush_plug(&self) {
        let held = PLUGGED.with(Cell::get);
        if held.runtime == self.address() {
            PLUGGED.with(|now| now.set(PluggedRequests { directions: [false; 2], ..held }));
            self.flush_directions(held.directions, &CopyBudget::unlimited());
        }
    }

    /// Returns true if this thread has a plug that holds back the requests that it starts now.
    pub(super) fn has_plug(&self) -> bool {
        PLUGGED.with(Cell::get).runtime == self.address()
    }

    pub(super) fn flush_directions(&self, directions: [bool; 2], copies: &CopyBudget) {
        for (direction, _) in directions.into_iter().enumerate().filter(|(_, some)| *some) {
            self.flush_within(direction, copies);
        }
    }

    /// Adds a direction to this thread's plug. Returns false if the thread has none, and has to
    /// flush the direction itself.
    pub(crate) fn add_to_plug(&self, direction: usize) -> bool {
        PLUGGED.with(|held| {
            let mut now = held.get();
            let later = now.runtime == self.address();
            if later {
                now.directions[direction] = true;
                held.set(now);
            }
            later
        })
    }
}
