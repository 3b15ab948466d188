//! A thread that has started requests and has nothing better to do serves them itself.
//!
//! Callbacks need somebody who polls. A [poller](super::pollers) does that wherever nobody is there, but it has to be woken for the first request, and
//! there is one for each completion queue: on few cores the threads that start, those that poll and the peer push each other off the cores, five switches for
//! each small request. A thread that starts requests and would only wait for the next thing to do can serve all that were started, by whomever, as
//! long as there are any. Whoever starts more meanwhile wakes nobody.

use std::time::{Duration, Instant};

use super::Runtime;
use crate::{
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
        now, spin_loop, yield_now,
    },
    verbs::WorkCompletion,
};

/// So long nothing comes until the pollers take over, which sleep. A peer on this host that is awake takes less; others may take longer, and then it
/// is soon left out ([`Habit`]).
const PATIENCE: Duration = Duration::from_micros(100);
/// So long at most at a time, as what the thread was started for waits.
const LONGEST: Duration = Duration::from_millis(5);
/// Looks at all queues that find nothing before the core is offered to others.
const LOOKS_PER_YIELD: u32 = 16;
/// Looks at all queues before one at the clock, whatever they find.
const LOOKS_PER_CLOCK: u32 = 64;

/// Stays in a row that found nothing before some are left out.
const IN_VAIN: u32 = 4;
/// The logarithm of how many are left out, at most.
const RAREST: u32 = 10;

/// What a thread that serves waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All that was started, by whomever.
    AllDone,
    /// Anything of it. What is done with it then is together what one look at the completion queues has found.
    AnyDone,
}

/// Who serves, and whether that pays.
#[derive(Debug, Default)]
pub(crate) struct Service {
    habit: Habit,
    /// Started requests whose owners have been told, for those who wait for any. Counted without an order: who looks too early looks again.
    told: AtomicUsize,
    /// When the age of requests is looked at next, which otherwise the pollers do.
    overdue_at: Mutex<Option<Instant>>,
}

/// Where answers take longer than a thread stays, staying is in vain: it is tried ever more rarely. A hint: threads may count at once.
#[derive(Debug, Default)]
struct Habit {
    in_vain: AtomicU32,
    left_out: AtomicU32,
}

impl Habit {
    /// Whether to try now.
    fn tries(&self) -> bool {
        let left = self.left_out.load(Ordering::Relaxed);
        if left > 0 {
            self.left_out.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// A try found something, or nothing.
    fn tried(&self, found: bool) {
        if found {
            // Mostly it is.
            if self.in_vain.load(Ordering::Relaxed) > 0 {
                self.in_vain.store(0, Ordering::Relaxed);
            }
            return;
        }
        let row = (self.in_vain.load(Ordering::Relaxed) + 1).min(RAREST);
        self.in_vain.store(row, Ordering::Relaxed);
        if row >= IN_VAIN {
            self.left_out.store(1 << row, Ordering::Relaxed);
        }
    }
}

/// The one thread that serves, until it is dropped.
struct Serving<'a>(&'a Runtime);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let Serving(runtime) = self;
        runtime.serving.store(false, Ordering::SeqCst);
        // Whoever has found it taken, and so woken nobody, has counted his request before: this finds it.
        runtime.drive_what_was_started();
    }
}

impl Runtime {
    /// Runs `start`, and serves on this thread what was started, there or elsewhere, until all or any of it is done, nothing comes any more, or it has been at it
    /// for long: then the pollers go on. If another thread serves already, this is in a callback, or nobody but pollers may, it only runs `start`.
    pub(crate) fn serve<R>(&self, until: Until, start: impl FnOnce() -> R) -> R {
        let may = self.may_be_served && !super::in_callback() && self.service.habit.tries();
        if !may || self.serving.swap(true, Ordering::SeqCst) {
            return start();
        }
        let _serving = Serving(self);
        let told = || self.service.told.load(Ordering::Relaxed);
        let before = told();
        let result = start();
        // Where this is part of what is posted together.
        self.post_held();
        // Also what a poller has found that was at it already.
        self.serve_what_was_started(&|| until == Until::AnyDone && told() != before);
        result
    }

    /// The owner of a started request has been told that it is done.
    pub(super) fn told_one(&self) {
        self.service.told.fetch_add(1, Ordering::Relaxed);
    }

    /// True if a thread serves all that is started, and sees to the rest when it leaves.
    pub(super) fn is_served(&self) -> bool {
        self.serving.load(Ordering::SeqCst)
    }

    fn serve_what_was_started(&self, has_enough: &dyn Fn() -> bool) {
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        let began = now();
        self.end_overdue_in_time(began);
        let (mut looks, mut vain, mut any): (u32, u32, bool) = (0, 0, false);
        let mut waits_since = None;
        while self.queued.load(Ordering::SeqCst) > 0 && !self.stopping.load(Ordering::SeqCst) {
            if has_enough() {
                any = true;
                break;
            }
            let mut found = 0;
            for (index, attendance) in self.attendances.iter().enumerate() {
                if self.seats[index].is_idle(index) {
                    continue;
                }
                match attendance.look(&self.stats, &dispatch) {
                    Ok(count) => found += count.unwrap_or(0),
                    Err(e) => {
                        log::error!("{e}");
                        return self.fail();
                    }
                }
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_PER_CLOCK) && now().saturating_duration_since(began) > LONGEST {
                break;
            }
            if found > 0 {
                (vain, any, waits_since) = (0, true, None);
                continue;
            }
            vain += 1;
            if !vain.is_multiple_of(LOOKS_PER_YIELD) {
                spin_loop();
                continue;
            }
            let now = now();
            if now.saturating_duration_since(*waits_since.get_or_insert(now)) > PATIENCE {
                break;
            }
            yield_now();
        }
        self.service.habit.tried(any);
    }

    /// Ends what has been out for longer than a request may: while somebody serves no poller looks after that.
    fn end_overdue_in_time(&self, now: Instant) {
        let mut at = self.service.overdue_at.lock();
        let due = at.is_some_and(|at| now >= at);
        if due || at.is_none() {
            *at = Some(now + self.timeout / 2);
        }
        drop(at);
        if due {
            (0..self.attendances.len()).for_each(|index| self.end_overdue(index));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_ever_more_rarely_until_it_pays() {
        let habit = Habit::default();
        // How many are left out before the next try.
        let left_out = || (0..).take_while(|_| !habit.tries()).count();
        let in_vain = |times: usize| {
            let once = |_| {
                habit.tried(false);
                left_out()
            };
            (0..times).map(once).collect::<Vec<_>>()
        };
        assert_eq!(in_vain(9), [0, 0, 0, 16, 32, 64, 128, 256, 512]);
        assert_eq!(in_vain(3), [1024, 1024, 1024]);
        habit.tried(true);
        assert_eq!(in_vain(4), [0, 0, 0, 16]);
    }
}
