//! Which thread looks for calls.
//!
//! One thread at a time has the turn: it polls and sleeps on the completion queue. With a call in its hand it lays the turn
//! down, carries out the call, and takes the turn up again. Nobody is woken for that, and a call costs no switch to another
//! thread, as long as calls are short. While one is carried out nobody looks, though. Two things keep a long one from
//! holding up the others:
//!
//! - Where calls have been long lately, the turn is handed to another thread at once.
//! - One of the threads that wait is the *deputy*. While there are calls it looks every other millisecond: if the turn lies
//!   there, and no call has been found since its last look, it takes it. When nothing has been found for a while it sleeps, and
//!   whoever finds the next call wakes it.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Between two looks of the deputy: what a call may have to wait behind a long one that came out of the blue, twice.
const TICK: Duration = Duration::from_millis(2);
/// Looks that find nothing new before the deputy sleeps.
const QUIET: u32 = 16;
/// Calls that take longer than this on average are worth the waking of another thread, whether or not there is another call
/// by then; and where calls come faster than they are carried out, those that take longer than this.
const LONG: Duration = Duration::from_micros(50);
const LONG_IN_A_ROW: Duration = Duration::from_micros(20);
/// The weight of a call in the average is one in so many. One alone does not make it long.
const WEIGHT: u32 = 8;
const LONGEST: Duration = LONG.saturating_mul(WEIGHT);

/// How long calls take, lately. Pure.
#[derive(Debug, Default)]
struct Pace {
    average: Duration,
    /// The last one was found at once after the one before.
    in_a_row: bool,
}

impl Pace {
    /// A call took so long.
    fn took(&mut self, time: Duration) {
        self.average = (self.average * (WEIGHT - 1) + time.min(LONGEST)) / WEIGHT;
    }

    /// Another thread should look for calls while this one carries out one.
    fn is_long(&self) -> bool {
        self.average > if self.in_a_row { LONG_IN_A_ROW } else { LONG }
    }
}

/// What the deputy does after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Take,
    Again,
    Sleep,
}

/// Who does what. Pure.
#[derive(Debug, Default)]
struct Roster {
    /// A thread has the turn.
    taken: bool,
    /// A thread waits as the deputy.
    deputy: bool,
    /// The deputy sleeps until it is woken.
    asleep: bool,
    /// The deputy is to take the turn.
    handed: bool,
    /// Calls found so far.
    calls: u64,
    /// As many at the deputy's last look.
    seen: u64,
    /// Its looks since that found nothing new.
    quiet: u32,
}

impl Roster {
    /// A thread without a call takes the turn if it lies there.
    fn take(&mut self) -> bool {
        let free = !self.taken && !self.handed;
        self.taken |= free;
        free
    }

    /// The thread that has the turn has found a call, and lays the turn down; if `hand_on`, for the deputy. True if the
    /// deputy is to be woken.
    #[must_use]
    fn lay_down(&mut self, hand_on: bool) -> bool {
        self.taken = false;
        self.calls += 1;
        self.handed = hand_on && self.deputy;
        let slept = std::mem::take(&mut self.asleep);
        slept || self.handed
    }

    /// The thread that has the turn has found nothing, and goes on to something else. True if the deputy is to be woken.
    #[must_use]
    fn put_back(&mut self) -> bool {
        self.taken = false;
        std::mem::take(&mut self.asleep)
    }

    /// A thread that waits becomes the deputy if there is none.
    fn enter(&mut self) -> bool {
        let vacant = !self.deputy;
        if vacant {
            (self.deputy, self.asleep, self.seen, self.quiet) = (true, false, self.calls, 0);
        }
        vacant
    }

    /// The deputy looks.
    fn look(&mut self) -> Look {
        let news = std::mem::replace(&mut self.seen, self.calls) != self.calls;
        self.quiet = if news { 0 } else { self.quiet + 1 };
        if self.handed || !(self.taken || news) {
            (self.taken, self.handed, self.deputy) = (true, false, false);
            return Look::Take;
        }
        // While the turn lies there somebody has to look.
        self.asleep = self.taken && self.quiet >= QUIET;
        if self.asleep { Look::Sleep } else { Look::Again }
    }
}

#[derive(Debug, Default)]
struct State {
    roster: Roster,
    pace: Pace,
    over: bool,
}

/// The turn, and those who wait for it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    deputy: Condvar,
    others: Condvar,
}

impl Turns {
    /// Returns when the calling thread has the turn; false at the end. Its last call took `took`.
    pub(super) fn take(&self, took: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if let Some(took) = took {
            state.pace.took(took);
        }
        let mut waited = false;
        loop {
            if state.over {
                return false;
            }
            if state.roster.take() {
                if waited {
                    // It was woken to be the deputy.
                    self.others.notify_one();
                }
                return true;
            }
            if state.roster.enter() {
                break;
            }
            waited = true;
            self.others.wait(&mut state);
        }
        let mut sleep = false;
        loop {
            if sleep {
                self.deputy.wait(&mut state);
            } else {
                self.deputy.wait_for(&mut state, TICK);
            }
            if state.over {
                return false;
            }
            match state.roster.look() {
                Look::Take => {
                    // Its place is free.
                    self.others.notify_one();
                    return true;
                }
                look => sleep = look == Look::Sleep,
            }
        }
    }

    /// Takes the turn if it lies there, for a look: [`lay_down`](Self::lay_down) or [`put_back`](Self::put_back) has to follow.
    pub(super) fn take_for_a_look(&self) -> bool {
        let mut state = self.state.lock();
        !state.over && state.roster.take()
    }

    /// The look has found nothing.
    pub(super) fn put_back(&self) {
        let wake = self.state.lock().roster.put_back();
        if wake {
            self.deputy.notify_one();
        }
    }

    /// The thread that has the turn has found a call, `at_once` if with the first look: another thread may look from now on.
    pub(super) fn lay_down(&self, at_once: bool) {
        let wake = {
            let mut state = self.state.lock();
            state.pace.in_a_row = at_once;
            let hand_on = state.pace.is_long();
            state.roster.lay_down(hand_on)
        };
        if wake {
            self.deputy.notify_one();
        }
    }

    /// Ends all waits.
    pub(super) fn end(&self) {
        self.state.lock().over = true;
        self.deputy.notify_all();
        self.others.notify_all();
    }
}

#[cfg(test)]
mod tests;
