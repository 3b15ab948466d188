//! Signals of waiters, and pages to drop before a lock is answered.
//!
//! # Concurrency
//! The thread `locks`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use fuser::Errno;

use super::shared::{Shared, Waiter};
use crate::fuse::{process::Signals, session::ReplyEmpty};
use rfs_client::LockRequest;

/// Interval of polls for signals of waiters. Two polls detect a signal.
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

impl Shared {
    /// Runs the thread `locks`.
    pub(super) fn poll_signals(&self) {
        let (mut next, mut signals) = (Instant::now(), HashMap::<u64, Signals>::new());
        while let Some(stale) = self.next(next) {
            stale.into_iter().for_each(|(lock, reply)| self.drop_pages(&lock, reply));
            let now = Instant::now();
            if now < next {
                continue;
            }
            let polled = self.waiters_to_poll(now);
            signals.retain(|ticket, _| polled.iter().any(|polled| polled.ticket == *ticket));
            next = now + pause(polled.len());
            for Polled { ticket, tid, insists } in polled {
                if signals.entry(ticket).or_default().interrupt(tid) {
                    self.interrupt(ticket);
                } else if insists && let Err(e) = self.client.locks.insist(ticket) {
                    log::debug!("cannot insist on a lock: {e}");
                }
            }
        }
    }

    /// Sleeps until pages have to be dropped, or until `poll` if there are waiters. Returns the
    /// locks of the files. Returns `None` at the end.
    fn next(&self, poll: Instant) -> Option<Vec<(LockRequest, ReplyEmpty)>> {
        let mut state = self.state.lock();
        while !state.stop && state.stale.is_empty() {
            if state.waiters.is_empty() {
                self.work.wait(&mut state);
            } else if self.work.wait_until(&mut state, poll).timed_out() {
                break;
            }
        }
        (!state.stop).then(|| std::mem::take(&mut state.stale))
    }

    /// Returns the waiters to poll. A waiter that has queued for [`QUEUE_LIMIT`] insists from now
    /// on.
    fn waiters_to_poll(&self, now: Instant) -> Vec<Polled> {
        let poll = |(&ticket, waiter): (&u64, &mut Waiter)| {
            let insists = !waiter.insists && now >= waiter.since + QUEUE_LIMIT;
            waiter.insists |= insists;
            Polled { ticket, tid: waiter.tid, insists }
        };
        self.state.lock().waiters.iter_mut().map(poll).collect()
    }

    /// Ends a wait by a signal. If the wait has ended already, its outcome answers the request.
    fn interrupt(&self, ticket: u64) {
        // A thread that has ended may have been granted its lock since the poll.
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
            // The thread `grants` meets the same error, and answers.
            Err(e) => log::debug!("cannot end the wait for a lock: {e}"),
        }
    }
}

/// A waiter to poll.
struct Polled {
    ticket: u64,
    tid: u32,
    /// True if the waiter insists from this poll on.
    insists: bool,
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
