//! Polls the request memory of sessions, and puts idle sessions to sleep.
//!
//! A session is awake while a thread of the host polls its requests. At most one thread polls, from
//! the first notification until all sessions are asleep. For how long a session without requests
//! stays awake is learnt, or a limit of the host ([`PollTime`]).
//!
//! To put a session to sleep the host marks it asleep, executes a fence, and polls its requests
//! once more. A client writes its request, executes a fence ([`fence_after_request`]), and reads
//! the mark. Therefore the host finds the request, or the client finds that it has to notify the
//! host. Without either fence a call could wait forever, as the models show.
//!
//! # Concurrency
//! Runs on the threads of the call server. `polled` is held by the polling thread; `new_sessions`
//! is a leaf.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::PollBudget;
use crate::sync::{
    Mutex, TryMutex,
    atomic::{AtomicBool, AtomicU32, Ordering, fence},
};
#[cfg(not(loom))]
use crate::sync::{spin_loop, yield_now};

/// Polls of all sessions per round. The thread yields its core after each round.
#[cfg(not(loom))]
const POLLS_PER_ROUND: u32 = 64;
#[cfg(loom)]
const POLLS_PER_ROUND: u32 = 1;
/// Idle rounds after which a session sleeps at the latest: about a tenth of a millisecond on an
/// otherwise idle core.
#[cfg(not(loom))]
const MAX_IDLE_ROUNDS: u32 = 32;
#[cfg(loom)]
const MAX_IDLE_ROUNDS: u32 = 1;

// Models have no pauses: in loom, a load after a yield sees all earlier stores, which is not true
// elsewhere.
#[cfg(loom)]
fn spin_loop() {}
#[cfg(loom)]
fn yield_now() {}

/// Orders the store of a request before the load of the sleep word. Called by a client that does
/// both on its own processor.
pub(super) fn fence_after_request() {
    fence(Ordering::SeqCst);
}

/// A session as seen by the polling thread.
pub(crate) trait PolledSession {
    /// Resources for executing a request.
    type Work;
    /// Executes the present requests. Returns true if there were any.
    fn serve(self: &Arc<Self>, work: &mut Self::Work) -> bool;
    /// Tells the client whether a thread polls.
    fn mark(&self, awake: bool);
    /// Returns true if the session has ended.
    fn is_over(&self) -> bool;
    /// Returns the session's poll state, or `None` if it is not polled.
    fn poll_state(&self) -> Option<&PollState>;
    /// Returns the core of this host on which the client runs, if known.
    fn core(&self) -> Option<usize> {
        None
    }
}

/// The time for which a session without requests is polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PollTime {
    /// As long as that has paid lately, at most [`MAX_IDLE_ROUNDS`].
    #[default]
    Learned,
    AtLeast(Duration),
}

/// Poll state of a session.
#[derive(Debug)]
pub(crate) struct PollState {
    /// The session is polled, or about to be.
    awake: AtomicBool,
    poll_time: PollTime,
    /// Idle rounds that the session may use.
    budget: PollBudget,
    /// Rounds since the last request.
    idle_rounds: AtomicU32,
    /// Time of the first of these rounds behind the budget, if the host has set a time.
    idle_since: Mutex<Option<Instant>>,
}

impl Default for PollState {
    fn default() -> Self {
        PollState::new(PollTime::Learned)
    }
}

/// Hooks between two rounds.
pub(crate) trait BetweenRounds<W> {
    /// Does other work between two rounds. Returns false if the thread has to stop.
    fn after_round(&self, work: &mut W) -> bool;
    /// Keeps the thread off these cores.
    fn avoid_cores(&self, _work: &mut W, _cores: impl Iterator<Item = usize> + Clone) {}
    /// Ends the work of a thread that stops polling.
    fn end(&self, _work: &mut W) {}
}

/// The awake sessions.
#[derive(Debug)]
pub(crate) struct SessionPoller<T> {
    /// Sessions that the polling thread has not picked up yet.
    new_sessions: Mutex<Vec<Arc<T>>>,
    /// Sessions being polled. Held by the polling thread.
    polled: TryMutex<Vec<Arc<T>>>,
}

impl<T> Default for SessionPoller<T> {
    fn default() -> Self {
        SessionPoller { new_sessions: Mutex::default(), polled: TryMutex::new(Vec::new()) }
    }
}

impl<T: PolledSession> SessionPoller<T> {
    /// Wakes a session. The caller has to call [`run`](Self::run) afterwards.
    pub(crate) fn wake(&self, session: &Arc<T>) {
        if wake(session) {
            self.new_sessions.lock().push(Arc::clone(session));
        }
    }

    /// Polls the awake sessions until all sleep, unless another thread polls.
    pub(crate) fn run(&self, work: &mut T::Work, between: &impl BetweenRounds<T::Work>) {
        // A polling thread picks up new sessions. If it has just stopped, this loop finds them.
        while !self.new_sessions.lock().is_empty() {
            let Some(mut sessions) = self.polled.try_lock() else { return };
            let goes_on = self.poll_until_all_sleep(&mut sessions, work, between);
            between.end(work);
            if !goes_on {
                // No thread serves any more.
                sessions.drain(..).for_each(|session| session.mark(false));
                return;
            }
        }
    }

    /// Polls until all sessions sleep. Returns false if the thread has to stop.
    fn poll_until_all_sleep(
        &self,
        sessions: &mut Vec<Arc<T>>,
        work: &mut T::Work,
        between: &impl BetweenRounds<T::Work>,
    ) -> bool {
        loop {
            sessions.append(&mut self.new_sessions.lock());
            for _ in 0..POLLS_PER_ROUND {
                let mut found = false;
                for session in sessions.iter() {
                    if session.serve(work) {
                        found = true;
                        session.poll_state().inspect(|poll_state| poll_state.served());
                    }
                }
                if !found {
                    spin_loop();
                }
            }
            sessions.retain(|session| !session.is_over() && stays_awake(session, work));
            // A session added after this check finds the lock held, and the loop in `run` picks it
            // up.
            if sessions.is_empty() && self.new_sessions.lock().is_empty() {
                return true;
            }
            if !between.after_round(work) {
                return false;
            }
            between.avoid_cores(work, sessions.iter().filter_map(|session| session.core()));
            yield_now();
        }
    }
}

/// Wakes a session. Returns true if it was asleep.
fn wake<T: PolledSession>(session: &Arc<T>) -> bool {
    let Some(poll_state) = session.poll_state() else { return false };
    // The mark is written after that of a session going to sleep, and overwrites it.
    if poll_state.awake.swap(true, Ordering::SeqCst) {
        return false;
    }
    poll_state.restart();
    session.mark(true);
    true
}

/// Ends a round: puts a session to sleep if its budget is spent. Returns true if the session
/// stays awake, also because of a late request.
fn stays_awake<T: PolledSession>(session: &Arc<T>, work: &mut T::Work) -> bool {
    let Some(poll_state) = session.poll_state() else { return false };
    if poll_state.has_budget() {
        return true;
    }
    poll_state.budget.record_miss();
    session.mark(false);
    poll_state.awake.store(false, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    // If another thread has woken the session, that thread polls it.
    session.serve(work) && wake(session)
}

impl PollState {
    pub(crate) fn new(poll_time: PollTime) -> PollState {
        PollState {
            awake: AtomicBool::new(false),
            poll_time,
            budget: PollBudget::new(MAX_IDLE_ROUNDS),
            idle_rounds: AtomicU32::new(0),
            idle_since: Mutex::new(None),
        }
    }

    /// Records that a round found requests.
    fn served(&self) {
        let idle_rounds = self.idle_rounds.load(Ordering::Relaxed);
        if idle_rounds > 0 {
            self.budget.record_hit(idle_rounds - 1);
            self.restart();
        }
    }

    /// Counts a round. Returns true if the budget permits another one. The first round is free.
    fn has_budget(&self) -> bool {
        let idle_rounds = self.idle_rounds.load(Ordering::Relaxed).saturating_add(1);
        self.idle_rounds.store(idle_rounds, Ordering::Relaxed);
        idle_rounds <= self.budget.limit() || self.has_time()
    }

    /// Returns true if the host has set a time, and it is not over.
    fn has_time(&self) -> bool {
        let PollTime::AtLeast(time) = self.poll_time else { return false };
        self.idle_since.lock().get_or_insert_with(Instant::now).elapsed() < time
    }

    /// Counts rounds and time from now on.
    fn restart(&self) {
        self.idle_rounds.store(0, Ordering::Relaxed);
        if self.poll_time != PollTime::Learned {
            *self.idle_since.lock() = None;
        }
    }
}

#[cfg(all(loom, test))]
mod model;
