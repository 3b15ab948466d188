//! Wakes the thread of the recall timeout when a recall is queued.
//!
//! # Concurrency
//! Any thread sets the alarm off; one thread sleeps.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::run_clock;

#[derive(Debug, Default)]
struct State {
    recalled: bool,
    stop: bool,
}

/// Wakes the thread.
#[derive(Debug, Default)]
pub struct Alarm {
    state: Mutex<State>,
    changed: Condvar,
}

impl Alarm {
    /// Records that something was recalled.
    pub(crate) fn recalled(&self) {
        let mut state = self.state.lock();
        if !state.recalled {
            state.recalled = true;
            self.changed.notify_one();
        }
    }

    /// Sleeps until it is time to check `deadline`, or, without a deadline, until something is
    /// recalled. Returns false when the server stops.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        match deadline.map(run_clock::wake_for) {
            Some(look) => while !state.stop && !self.changed.wait_until(&mut state, look).timed_out() {},
            None => {
                while !state.stop && !state.recalled {
                    self.changed.wait(&mut state);
                }
            }
        }
        state.recalled = false;
        !state.stop
    }

    /// Ends the sleep for good.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_one();
    }
}
