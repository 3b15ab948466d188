//! The state of a pending call, until its owner has the outcome.
//!
//! # Concurrency
//! Any thread. One lock, held briefly. Wakers are run and dropped without it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::{Poll, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    error::RequestError,
    runtime::{CqWaiter, as_callback},
};

/// The party that is notified of the end.
#[derive(Debug)]
pub(super) enum Waiter {
    Unset,
    Thread(Thread),
    Task(Waker),
}

impl Waiter {
    pub(super) fn notify(self) {
        match self {
            Waiter::Unset => {}
            Waiter::Thread(thread) if thread.id() == thread::current().id() => {}
            Waiter::Thread(thread) => thread.unpark(),
            // A waker runs executor code, possibly the task itself, so it counts as a callback.
            Waiter::Task(waker) => as_callback(|| waker.wake()),
        }
    }
}

#[derive(Debug)]
enum Phase {
    /// Has the request.
    Queued(Vec<u8>),
    Sent,
    Done(Result<Vec<u8>, RequestError>),
    /// The owner has the outcome, or has dropped the call.
    Over,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    waiter: Waiter,
}

/// The state of a pending call, shared by its owner and the thread that finds its reply.
#[derive(Debug)]
pub(crate) struct CallState {
    state: Mutex<State>,
    /// True in the phases `Done` and `Over`, readable without the lock.
    done: AtomicBool,
    began: Instant,
    timeout: Duration,
}

impl CallState {
    /// Returns the state of a call that waits for a slot.
    pub(super) fn queued(request: Vec<u8>, timeout: Duration) -> CallState {
        CallState {
            state: Mutex::new(State { phase: Phase::Queued(request), waiter: Waiter::Unset }),
            done: AtomicBool::new(false),
            began: Instant::now(),
            timeout,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Returns the time at which the call is overdue.
    pub(crate) fn due(&self) -> Instant {
        self.began + self.timeout
    }

    /// Returns the outcome, if there is one. Otherwise `waker` is woken at the end.
    ///
    /// # Panics
    /// If the outcome was returned before.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<Vec<u8>, RequestError>> {
        let mut state = self.state.lock();
        if let Some(outcome) = state.take_outcome() {
            return Poll::Ready(outcome);
        }
        let old = match &state.waiter {
            Waiter::Task(old) if old.will_wake(waker) => Waiter::Unset,
            _ => std::mem::replace(&mut state.waiter, Waiter::Task(waker.clone())),
        };
        drop(state);
        // The drop of a waker is executor code.
        drop(old);
        Poll::Pending
    }

    /// Returns the outcome, if there is one.
    ///
    /// # Panics
    /// If the outcome was returned before.
    pub(crate) fn outcome(&self) -> Option<Result<Vec<u8>, RequestError>> {
        self.state.lock().take_outcome()
    }

    /// Makes the calling thread the waiter, or removes the waiter.
    pub(crate) fn set_waiting(&self, waits: bool) {
        let waiter = if waits { Waiter::Thread(thread::current()) } else { Waiter::Unset };
        let old = std::mem::replace(&mut self.state.lock().waiter, waiter);
        drop(old);
    }

    /// Takes the request of a queued call, which is about to be sent. Returns `None` if it was
    /// dropped.
    pub(super) fn begin(&self) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut state.phase, Phase::Sent) {
            Phase::Queued(request) => Some(request),
            other => {
                state.phase = other;
                None
            }
        }
    }

    /// Ends the call, which is overdue. It is still queued or in its slot, and leaves it as the
    /// session fails.
    /// Returns false if it has ended in time. A call that was dropped after it was sent has not.
    pub(super) fn time_out(&self) -> bool {
        if matches!(self.state.lock().phase, Phase::Done(_)) {
            return false;
        }
        log::warn!("the host has not answered a call within {:?}: closing the session", self.timeout);
        self.end(Err(RequestError::Timeout(self.timeout))).notify();
        true
    }

    /// Returns the time since the call was begun.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Ends the call without an outcome: its owner has dropped it.
    pub(super) fn cancel(&self) {
        let mut state = self.state.lock();
        let phase = std::mem::replace(&mut state.phase, Phase::Over);
        let waiter = std::mem::replace(&mut state.waiter, Waiter::Unset);
        self.done.store(true, Ordering::Release);
        drop(state);
        drop((phase, waiter));
    }

    /// Ends the call, unless it has ended. Returns the waiter to notify.
    pub(super) fn end(&self, outcome: Result<Vec<u8>, RequestError>) -> Waiter {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Done(_) | Phase::Over) {
            return Waiter::Unset;
        }
        state.phase = Phase::Done(outcome);
        self.done.store(true, Ordering::Release);
        std::mem::replace(&mut state.waiter, Waiter::Unset)
    }
}

impl State {
    fn take_outcome(&mut self) -> Option<Result<Vec<u8>, RequestError>> {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Done(outcome) => Some(outcome),
            Phase::Over => panic!("the outcome of a call is given once"),
            other => {
                self.phase = other;
                None
            }
        }
    }
}

impl CqWaiter for CallState {
    fn is_settled_on(&self, _: usize) -> bool {
        self.is_done()
    }

    fn wake(&self) {
        if let Waiter::Thread(thread) = &self.state.lock().waiter {
            thread.unpark();
        }
    }
}
