//! Decides which thread of the call server polls for calls.
//!
//! One thread at a time holds the poller role: it polls and sleeps on the completion queue. When
//! it finds a call it releases the role, executes the call, and takes the role again. No thread
//! is woken as long as calls are short. Two mechanisms keep a long call from delaying others. If
//! recent calls were long, the role is handed to another thread at once. One waiting thread is
//! the *standby*, which checks every 2 ms while calls arrive. It takes over if the role is free
//! and no call was found since its last check. After a quiet time it sleeps until the next call
//! wakes it.
//!
//! # Concurrency
//! Called by the threads of the call server. `state` is a leaf lock.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Interval between two checks of the standby. A call waits at most two intervals behind an
/// unexpectedly long call.
const STANDBY_INTERVAL: Duration = Duration::from_millis(2);
/// Checks without a new call before the standby sleeps.
const QUIET_CHECKS: u32 = 16;
/// Average duration from which waking another thread pays off. The second limit holds if calls
/// arrive faster than they are executed.
const LONG_CALL: Duration = Duration::from_micros(50);
const LONG_CALL_UNDER_LOAD: Duration = Duration::from_micros(20);
/// One call contributes `1 / AVERAGE_WEIGHT` to the average, so a single long call does not
/// exceed the limit.
const AVERAGE_WEIGHT: u32 = 8;
const MAX_SAMPLE: Duration = LONG_CALL.saturating_mul(AVERAGE_WEIGHT);

/// Moving average of call durations. No I/O, no locks, no clock.
#[derive(Debug, Default)]
struct CallDurations {
    average: Duration,
    /// The last call was found by the first poll after the call before it.
    under_load: bool,
}

impl CallDurations {
    /// Records the duration of a call.
    fn record(&mut self, time: Duration) {
        self.average = (self.average * (AVERAGE_WEIGHT - 1) + time.min(MAX_SAMPLE)) / AVERAGE_WEIGHT;
    }

    /// Returns true if another thread should poll while this one executes a call.
    fn is_long(&self) -> bool {
        self.average > if self.under_load { LONG_CALL_UNDER_LOAD } else { LONG_CALL }
    }
}

/// The standby's action after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandbyAction {
    TakeOver,
    PollAgain,
    Sleep,
}

/// The roles of the threads. No I/O, no locks, no clock.
#[derive(Debug, Default)]
struct PollerRoles {
    /// A thread is the poller.
    taken: bool,
    /// A thread waits as the standby.
    standby: bool,
    /// The standby sleeps until it is woken.
    asleep: bool,
    /// The standby has to take over.
    handed_off: bool,
    /// Number of calls found.
    calls: u64,
    /// Value of `calls` at the standby's last check.
    seen_calls: u64,
    /// Checks since then that found no new call.
    quiet: u32,
}

impl PollerRoles {
    /// Makes a thread without a call the poller if the role is free.
    fn acquire(&mut self) -> bool {
        let free = !self.taken && !self.handed_off;
        self.taken |= free;
        free
    }

    /// Releases the role because the poller has found a call. With `hand_off` the standby has to
    /// take over. Returns true if the standby has to be woken.
    #[must_use]
    fn release_for_call(&mut self, hand_off: bool) -> bool {
        self.taken = false;
        self.calls += 1;
        self.handed_off = hand_off && self.standby;
        let slept = std::mem::take(&mut self.asleep);
        slept || self.handed_off
    }

    /// Releases the role without a call. Returns true if the standby has to be woken.
    #[must_use]
    fn release(&mut self) -> bool {
        self.taken = false;
        std::mem::take(&mut self.asleep)
    }

    /// Makes a waiting thread the standby if there is none.
    fn become_standby(&mut self) -> bool {
        let vacant = !self.standby;
        if vacant {
            (self.standby, self.asleep, self.seen_calls, self.quiet) = (true, false, self.calls, 0);
        }
        vacant
    }

    /// Decides the standby's next action.
    fn check_standby(&mut self) -> StandbyAction {
        let news = std::mem::replace(&mut self.seen_calls, self.calls) != self.calls;
        self.quiet = if news { 0 } else { self.quiet + 1 };
        if self.handed_off || !(self.taken || news) {
            (self.taken, self.handed_off, self.standby) = (true, false, false);
            return StandbyAction::TakeOver;
        }
        // The standby may only sleep while another thread polls.
        self.asleep = self.taken && self.quiet >= QUIET_CHECKS;
        if self.asleep { StandbyAction::Sleep } else { StandbyAction::PollAgain }
    }
}

#[derive(Debug, Default)]
struct State {
    roles: PollerRoles,
    durations: CallDurations,
    closed: bool,
}

/// The poller role, and the threads that wait for it.
#[derive(Debug, Default)]
pub(crate) struct PollerHandoff {
    state: Mutex<State>,
    standby: Condvar,
    others: Condvar,
}

impl PollerHandoff {
    /// Blocks until the calling thread is the poller. Returns false at the end. `last_call` is the
    /// duration of the thread's last call.
    pub(crate) fn acquire(&self, last_call: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if let Some(last_call) = last_call {
            state.durations.record(last_call);
        }
        let mut waited = false;
        loop {
            if state.closed {
                return false;
            }
            if state.roles.acquire() {
                if waited {
                    // This thread was woken to become the standby, so another thread has to take
                    // that place.
                    self.others.notify_one();
                }
                return true;
            }
            if state.roles.become_standby() {
                break;
            }
            waited = true;
            self.others.wait(&mut state);
        }
        let mut sleep = false;
        loop {
            if sleep {
                self.standby.wait(&mut state);
            } else {
                self.standby.wait_for(&mut state, STANDBY_INTERVAL);
            }
            if state.closed {
                return false;
            }
            match state.roles.check_standby() {
                StandbyAction::TakeOver => {
                    // The standby's place is free.
                    self.others.notify_one();
                    return true;
                }
                look => sleep = look == StandbyAction::Sleep,
            }
        }
    }

    /// Makes the calling thread the poller if the role is free. The caller has to call
    /// [`release_for_call`](Self::release_for_call) or [`release`](Self::release) afterwards.
    pub(crate) fn try_acquire(&self) -> bool {
        let mut state = self.state.lock();
        !state.closed && state.roles.acquire()
    }

    /// Releases the role without a call.
    pub(crate) fn release(&self) {
        let wake = self.state.lock().roles.release();
        if wake {
            self.standby.notify_one();
        }
    }

    /// Releases the role for a call, so that another thread may poll. `at_once` tells that the
    /// first poll found the call.
    pub(crate) fn release_for_call(&self, at_once: bool) {
        let wake = {
            let mut state = self.state.lock();
            state.durations.under_load = at_once;
            let hand_off = state.durations.is_long();
            state.roles.release_for_call(hand_off)
        };
        if wake {
            self.standby.notify_one();
        }
    }

    /// Ends all waits.
    pub(crate) fn end(&self) {
        self.state.lock().closed = true;
        self.standby.notify_all();
        self.others.notify_all();
    }
}

#[cfg(test)]
mod tests;
