//! Model time: the host's time divided by a dilation factor.
//!
//! A thread pays a modelled cost by sleeping. It wakes up late, by the host's timers and by other
//! load. The clock remembers how late each thread is, and shortens the next cost by it. A thread's
//! model time is therefore the host's time minus its lateness, and does not drift.
//!
//! # Concurrency
//! Any thread. The lateness is a thread-local value; `busy` and `worked` are one atomic each.

use std::{
    cell::Cell,
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How a modelled card treats time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Timing {
    /// No cost takes time, and the card processes a list as soon as it is posted. All
    /// [`CardCounters`](super::CardCounters) but `interrupts` depend on the posts alone.
    Counts,
    /// A nanosecond of model time takes this number of nanoseconds, at least 1.
    Dilated(u32),
}

/// Shortest sleep in ns of the host. Shorter costs add up first.
const MIN_SLEEP_NS: i64 = 100_000;
/// Largest lateness in ns of the host that a thread makes up for.
const MAX_LATE_NS: i64 = 5_000_000;

thread_local! {
    /// Lateness of this thread in ns of the host. Negative: costs that it has not paid yet.
    static LATE: Cell<i64> = const { Cell::new(0) };
    static HAS_PRECISE_TIMERS: Cell<bool> = const { Cell::new(false) };
}

/// A clock of model time.
#[derive(Debug)]
pub(super) struct Clock {
    origin: Instant,
    timing: Timing,
    processors: u64,
    /// Threads that pay a cost now, as if they had a processor each.
    busy: AtomicU64,
    /// Model time in ns that threads have worked.
    worked: AtomicU64,
}

impl Clock {
    pub(super) fn new(timing: Timing, processors: u64) -> Clock {
        let timing = match timing {
            Timing::Dilated(factor) => Timing::Dilated(factor.max(1)),
            Timing::Counts => Timing::Counts,
        };
        Clock {
            origin: Instant::now(),
            timing,
            processors,
            busy: AtomicU64::new(0),
            worked: AtomicU64::new(0),
        }
    }

    pub(super) fn timing(&self) -> Timing {
        self.timing
    }

    fn factor(&self) -> Option<u64> {
        match self.timing {
            Timing::Counts => None,
            Timing::Dilated(factor) => Some(u64::from(factor)),
        }
    }

    /// Returns the host's time since the start, in ns.
    fn host(&self) -> i64 {
        i64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// Returns the model time of the host's clock, in ns. `u64::MAX` without time.
    pub(super) fn now(&self) -> u64 {
        self.factor().map_or(u64::MAX, |factor| self.host() as u64 / factor)
    }

    /// Returns the model time of the calling thread, in ns. 0 without time.
    pub(super) fn thread_now(&self) -> u64 {
        self.factor().map_or(0, |factor| (self.host() - LATE.get()).max(0) as u64 / factor)
    }

    /// Returns the instant of a model time.
    pub(super) fn instant(&self, at: u64) -> Instant {
        let factor = self.factor().unwrap_or(0);
        // A year at most, so that the sum never overflows.
        let limit = Duration::from_secs(365 * 24 * 60 * 60);
        self.origin + Duration::from_nanos(at.saturating_mul(factor)).min(limit)
    }

    /// Makes the calling thread work for `cost` ns of model time. If more threads work than there
    /// are processors, they share these.
    pub(super) fn spend(&self, cost: u64) {
        let Some(factor) = self.factor().filter(|_| cost > 0) else { return };
        self.worked.fetch_add(cost, Ordering::Relaxed);
        let busy = self.busy.fetch_add(1, Ordering::Relaxed) + 1;
        let shared = cost.saturating_mul(busy.max(self.processors)) / self.processors;
        let owed = i64::try_from(shared.saturating_mul(factor)).unwrap_or(i64::MAX);
        let late = LATE.get().saturating_sub(owed);
        LATE.set(late);
        if late <= -MIN_SLEEP_NS {
            let target = self.host().saturating_sub(late);
            sleep(late.unsigned_abs());
            LATE.set((self.host() - target).clamp(0, MAX_LATE_NS));
        }
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the model time in ns that threads have worked. Always 0 without time.
    pub(super) fn worked(&self) -> u64 {
        self.worked.load(Ordering::Relaxed)
    }

    /// Notes that the calling thread has seen an event of model time `at`, which is over. Its own
    /// time is not before the event. If it `slept` until the event, its time is the event's.
    pub(super) fn saw(&self, at: u64, slept: bool) {
        let Some(factor) = self.factor() else { return };
        let event = i64::try_from(at.saturating_mul(factor)).unwrap_or(i64::MAX);
        let since = (self.host() - event).clamp(0, MAX_LATE_NS);
        LATE.set(if slept { since } else { LATE.get().min(since) });
    }
}

fn sleep(ns: u64) {
    if !HAS_PRECISE_TIMERS.replace(true) {
        // Without it the kernel wakes a thread up to 50 us late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    }
    thread::sleep(Duration::from_nanos(ns));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_add_up_to_the_dilated_time() {
        let clock = Clock::new(Timing::Dilated(100), 4);
        let before = clock.thread_now();
        for _ in 0..1000 {
            clock.spend(100);
        }
        // The thread's time advances by the costs, and by the time between them.
        assert!(clock.thread_now() - before >= 100_000);
        assert!(clock.host() >= 100_000 * 100 - MIN_SLEEP_NS);
    }

    #[test]
    fn without_time_nothing_takes_time() {
        let clock = Clock::new(Timing::Counts, 1);
        clock.spend(u64::MAX);
        clock.saw(u64::MAX, true);
        assert_eq!((clock.now(), clock.thread_now()), (u64::MAX, 0));
    }

    #[test]
    fn a_thread_is_never_before_an_event_that_it_saw() {
        let clock = Clock::new(Timing::Dilated(1), 1);
        LATE.set(MAX_LATE_NS);
        thread::sleep(Duration::from_millis(10));
        let event = clock.now() - 1000;
        clock.saw(event, false);
        assert!(clock.thread_now() >= event);
        LATE.set(0);
    }
}
