//! Requests that a thread starts together.
//!
//! They are put into the merge queues as they are started, and the thread combines when it has started all of them: they merge and chain as if
//! they had met there. Another thread that combines meanwhile takes along what it finds. Nothing waits: the thread is at it all the time.

use std::cell::Cell;

use super::Runtime;
use crate::sync::thread_local;

thread_local! {
    static HELD: Cell<Held> = const { Cell::new(Held { runtime: 0, directions: [false; 2] }) };
}

/// What a thread has started and not posted yet.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The runtime's address; 0 for none.
    runtime: usize,
    /// In which directions.
    directions: [bool; 2],
}

/// Posts when it is over, also by a panic.
struct Together<'a> {
    runtime: &'a Runtime,
    outer: Held,
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        let held = HELD.with(|held| held.replace(self.outer));
        self.runtime.kick_all(held.directions);
    }
}

impl Runtime {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs `start`; what this thread starts in it is posted when it is over.
    pub(crate) fn together<R>(&self, start: impl FnOnce() -> R) -> R {
        let own = Held { runtime: self.address(), directions: [false; 2] };
        let _together = Together { runtime: self, outer: HELD.with(|held| held.replace(own)) };
        start()
    }

    /// Posts what this thread has started and not posted yet: it is about to wait.
    pub(super) fn post_held(&self) {
        let held = HELD.with(Cell::get);
        if held.runtime == self.address() {
            HELD.with(|now| now.set(Held { directions: [false; 2], ..held }));
            self.kick_all(held.directions);
        }
    }

    fn kick_all(&self, directions: [bool; 2]) {
        for (direction, _) in directions.into_iter().enumerate().filter(|(_, some)| *some) {
            self.kick(direction);
        }
    }

    /// True if this thread posts what it has just started later.
    pub(super) fn posts_later(&self, direction: usize) -> bool {
        HELD.with(|held| {
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
