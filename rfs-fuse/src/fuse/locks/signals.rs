//! Interrupts of waiters, and pages to drop before a lock is answered.
//!
//! # Concurrency
//! The thread `locks`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use fuser::Errno;

use super::lock_waiters::{Interrupt, LockWaiters, State, Waiter};
use crate::fuse::{process::Signals, session::ReplyEmpty};
use rfs_client::LockRequest;

/// Interval of polls for signals of waiters, where the kernel does not tell of all signals. Two
/// polls detect a signal.
const SIGNAL_POLL: Duration = Duration::from_millis(10);
/// Minimum interval per waiter. One poll takes about a twentieth of it, so polls take at most 5 %
/// of a processor.
const POLL_PER_WAITER: Duration = Duration::from_micros(250);
/// Time for which a waiter queues behind conflicting waiters. Longer could deadlock: a lock's
/// holder may wait for one of the queued requests in a way that the server does not see.
const QUEUE_LIMIT: Duration = Duration::from_secs(1);

/// Returns the interval of polls for a number of waiters.
fn pause(waiting: usize) -> Duration {
    SIGNAL_POLL.max(POLL_PER_WAITER.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX)))
}

/// Work of the thread `locks`.
#[derive(Default)]
struct Work {
    /// Granted locks of files whose pages go first.
    stale: Vec<(LockRequest, ReplyEmpty)>,
    /// Tickets of waits to end.
    interrupted: Vec<u64>,
    /// Tickets that insist from now on.
    insisting: Vec<u64>,
    /// Tickets and threads of waiters to poll for signals.
    polled: Vec<(u64, u32)>,
}

impl State {
    /// Returns the work that is due at `now`, and notes it as begun.
    fn take_work(&mut self, now: Instant, polls: bool) -> Work {
        let mut work = Work { stale: std::mem::take(&mut self.stale), ..Work::default() };
        for (&ticket, waiter) in &mut self.waiters {
            if waiter.ends_at(now).is_some_and(|at| now >= at) {
                waiter.interrupt = Interrupt::Tried(now);
                work.interrupted.push(ticket);
            }
            if waiter.insists_at().is_some_and(|at| now >= at) {
                waiter.insists = true;
                work.insisting.push(ticket);
            }
        }
        if polls && self.polls_at(now).is_some_and(|at| now >= at) {
            self.polled = Some(now);
            work.polled = self.waiters.iter().map(|(&ticket, waiter)| (ticket, waiter.tid)).collect();
        }
        work
    }

    /// Returns when more work is due. `None` if only a wake-up can bring some.
    fn next_work(&self, now: Instant, polls: bool) -> Option<Instant> {
        let waiters = self.waiters.values();
        let due = waiters.flat_map(|waiter| [waiter.ends_at(now), waiter.insists_at()]).flatten();
        due.chain(self.polls_at(now).filter(|_| polls)).min()
    }

    fn polls_at(&self, now: Instant) -> Option<Instant> {
        let next = || self.polled.map_or(now, |polled| polled + pause(self.waiters.len()));
        (!self.waiters.is_empty()).then(next)
    }
}

impl Waiter {
    /// Returns when to end the wait. While its request is at the server, it cannot be ended.
    fn ends_at(&self, now: Instant) -> Option<Instant> {
        match self.interrupt {
            Interrupt::Arrived if !self.asking => Some(now),
            Interrupt::Tried(at) if !self.asking => Some(at + SIGNAL_POLL),
            _ => None,
        }
    }

    /// Returns when the waiter stops to queue behind conflicting waiters.
    fn insists_at(&self) -> Option<Instant> {
        (!self.insists).then(|| self.since + QUEUE_LIMIT)
    }
}

impl LockWaiters {
    /// Runs the thread `locks`.
    pub(super) fn serve_waiters(&self) {
        // Over io_uring, the kernel may miss a signal that comes before it hands the request over.
        let polls = self.kernel.may_miss_signals();
        let mut signals = HashMap::<u64, Signals>::new();
        while let Some(Work { stale, interrupted, insisting, polled }) = self.next(polls) {
            stale.into_iter().for_each(|(lock, reply)| self.drop_pages(&lock, reply));
            interrupted.into_iter().for_each(|ticket| self.end_wait(ticket));
            for ticket in insisting {
                if let Err(e) = self.client.locks.insist(ticket) {
                    log::debug!("cannot insist on a lock: {e}");
                }
            }
            if !polled.is_empty() {
                signals.retain(|ticket, _| polled.iter().any(|(polled, _)| polled == ticket));
            }
            for (ticket, tid) in polled {
                if signals.entry(ticket).or_default().interrupt(tid) {
                    self.end_wait(ticket);
                }
            }
        }
    }

    /// Blocks until there is work. Returns `None` at the end.
    fn next(&self, polls: bool) -> Option<Work> {
        let mut state = self.state.lock();
        while !state.stop {
            let now = Instant::now();
            let work = state.take_work(now, polls);
            let Work { stale, interrupted, insisting, polled } = &work;
            if [stale.is_empty(), interrupted.is_empty(), insisting.is_empty(), polled.is_empty()]
                != [true; 4]
            {
                return Some(work);
            }
            match state.next_work(now, polls) {
                Some(at) => {
                    self.work.wait_until(&mut state, at);
                }
                None => self.work.wait(&mut state),
            }
        }
        None
    }

    /// Ends a wait by a signal. If the wait has ended already, its outcome answers the request.
    fn end_wait(&self, ticket: u64) {
        // The lock may have been granted since.
        if !self.state.lock().waiters.contains_key(&ticket) {
            return;
        }
        match self.client.locks.stop_waiting(ticket) {
            Ok(true) => {
                if let Some(waiter) = self.take(ticket) {
                    waiter.reply.error(Errno::EINTR);
                }
            }
            Ok(false) => {}
            // The thread `grants` meets the same error. It answers, or repeats the request.
            Err(e) => log::debug!("cannot end the wait for a lock: {e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`Signals`] needs two polls.
    #[test]
    fn a_signal_is_seen_within_20_ms_or_half_a_millisecond_per_waiter() {
        for waiting in [0, 1, 40] {
            assert_eq!(2 * pause(waiting), Duration::from_millis(20), "{waiting}");
        }
        for waiting in [41, 1000, 16_384] {
            assert_eq!(2 * pause(waiting), Duration::from_micros(500) * waiting as u32, "{waiting}");
        }
        assert!(pause(usize::MAX) > Duration::from_secs(3600));
    }
}
