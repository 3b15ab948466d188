//! Lets an issuing thread that would otherwise idle poll for the started requests of all threads.
//!
//! Callbacks need a thread that polls. A [poller](super::pollers) does that, but it has to be
//! woken for the first request, and each completion queue has its own. With few cores, issuing
//! threads, pollers and the peer then displace each other. Instead, one thread at a time polls
//! all queues in [`Runtime::serve`]. Threads that start requests meanwhile wake no poller.
//!
//! # Concurrency
//! `Runtime::serving` admits one thread. It takes leader locks of `CqWaiters` by
//! `try_lock`, one at a time.

use std::time::{Duration, Instant};

use crate::{
    runtime::{queue::CopyBudget, state::Runtime, wait::in_callback},
    sync::{
        atomic::{Ordering, fence},
        now, spin_loop, yield_now,
    },
    verbs::WorkCompletion,
};

/// Idle time after which the sleeping pollers take over. An awake peer on this host answers
/// sooner. With slower peers `Backoff` soon suppresses the attempts.
const IDLE_LIMIT: Duration = Duration::from_micros(100);
/// Time limit of one call: the work for which the thread started the requests waits meanwhile.
const MAX_SERVE_TIME: Duration = Duration::from_millis(5);
/// Empty rounds over all queues before the thread yields its core.
const POLLS_PER_YIELD: u32 = 16;
/// Rounds over all queues between two clock reads.
const POLLS_PER_CLOCK_READ: u32 = 64;

/// The condition at which a serving thread stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Until {
    /// All started requests are done, no matter which thread started them.
    AllDone,
    /// At least one started request is done. The thread still dispatches everything that the same
    /// poll found.
    AnyDone,
}

/// Marks the calling thread as the serving thread until it is dropped.
struct ServeGuard<'a>(&'a Runtime);

impl Drop for ServeGuard<'_> {
    fn drop(&mut self) {
        let ServeGuard(runtime) = self;
        runtime.serving.store(false, Ordering::SeqCst);
        // A thread that found the flag set has woken no poller, but has already counted its
        // request. This call sees that request.
        runtime.wake_pollers_for_started();
    }
}

/// Marks the serving thread as one that drains the merge queues, until it is dropped.
struct PollGuard<'a>(&'a Runtime);

impl<'a> PollGuard<'a> {
    fn new(runtime: &'a Runtime) -> PollGuard<'a> {
        runtime.busy_poll.polls.store(true, Ordering::Relaxed);
        PollGuard(runtime)
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        let PollGuard(runtime) = self;
        // Says so before the last check: see `Gathering`.
        runtime.busy_poll.polls.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        runtime.drain();
    }
}

impl Runtime {
    /// Runs `start`, then polls for all started requests as `until` says. Stops early if nothing
    /// completes for [`IDLE_LIMIT`] or after [`MAX_SERVE_TIME`]; the pollers go on then. Only runs
    /// `start` if another thread serves already, in a callback, or in a polling mode that does not
    /// allow it.
    pub(crate) fn serve<R>(&self, until: Until, start: impl FnOnce() -> R) -> R {
        let may = self.may_be_served && !in_callback() && self.busy_poll.backoff.should_poll();
        if !may || self.serving.swap(true, Ordering::SeqCst) {
            return start();
        }
        let _serving = ServeGuard(self);
        let notified = || self.busy_poll.notified.load(Ordering::Relaxed);
        let before = notified();
        let result = start();
        // The requests may be plugged, as part of an outer [`together`](Runtime::together).
        self.flush_plug();
        // The count also includes requests completed by a poller that was polling already.
        self.serve_started(&|| until == Until::AnyDone && notified() != before);
        result
    }

    /// Counts a started request whose owner has been notified.
    pub(crate) fn count_notified(&self) {
        self.busy_poll.notified.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if a thread serves all started requests. That thread wakes the pollers for the
    /// rest when it leaves.
    pub(crate) fn is_served(&self) -> bool {
        self.serving.load(Ordering::SeqCst)
    }

    fn serve_started(&self, has_enough: &dyn Fn() -> bool) {
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        let began = now();
        let _polls = PollGuard::new(self);
        self.end_overdue_if_due(began);
        let (mut polls, mut empty_polls, mut progressed): (u32, u32, bool) = (0, 0, false);
        let mut idle_since = None;
        while self.queued.load(Ordering::SeqCst) > 0 && !self.stopping.load(Ordering::SeqCst) {
            if has_enough() {
                progressed = true;
                break;
            }
            self.drain_within(&CopyBudget::of_a_poll());
            let mut found = 0;
            for (index, cq_waiters) in self.cq_waiters.iter().enumerate() {
                if self.pollers[index].is_idle(index) {
                    continue;
                }
                match cq_waiters.poll_once(&self.stats, &dispatch) {
                    Ok(count) => found += count.unwrap_or(0),
                    Err(e) => {
                        log::error!("completion queue: {e}");
                        return self.fail();
                    }
                }
            }
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_CLOCK_READ)
                && now().saturating_duration_since(began) > MAX_SERVE_TIME
            {
                break;
            }
            if found > 0 {
                (empty_polls, progressed, idle_since) = (0, true, None);
                continue;
            }
            empty_polls += 1;
            if !empty_polls.is_multiple_of(POLLS_PER_YIELD) {
                spin_loop();
                continue;
            }
            let now = now();
            if now.saturating_duration_since(*idle_since.get_or_insert(now)) > IDLE_LIMIT {
                break;
            }
            yield_now();
        }
        self.busy_poll.backoff.record(progressed);
    }

    /// Ends overdue requests, at most every half timeout. The pollers do not check
    /// while a thread serves.
    fn end_overdue_if_due(&self, now: Instant) {
        let mut at = self.busy_poll.overdue_at.lock();
        let due = at.is_some_and(|at| now >= at);
        // A timeout may have become shorter since the time was set.
        let next = now + self.shortest_timeout.check_interval();
        *at = Some(at.filter(|_| !due).map_or(next, |at| at.min(next)));
        drop(at);
        if due {
            (0..self.cq_waiters.len()).for_each(|index| self.fail_overdue_lanes(index));
            self.end_overdue_backlog();
        }
    }
}
