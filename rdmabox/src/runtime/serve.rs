//! A thread that has started requests and has nothing better to do serves them itself.
//!
//! Callbacks need somebody who polls. A [poller](super::pollers) does that wherever nobody is there, but it has to be woken for the first request, and
//! there is one for each completion queue: on few cores the threads that start, those that poll and the peer push each other off the cores, five switches for
//! each small request. A thread that starts requests and would only wait for the next thing to do can serve all that were started, by whomever, as
//! long as there are any. Whoever starts more meanwhile wakes nobody.

use std::time::{Duration, Instant};

use super::Runtime;
use crate::{
    sync::{atomic::Ordering, now, spin_loop, yield_now},
    verbs::WorkCompletion,
};

/// So long nothing comes until the pollers take over, which sleep: longer than a peer takes that is awake.
const PATIENCE: Duration = Duration::from_micros(100);
/// Looks at all queues that find nothing before the core is offered to others.
const LOOKS_PER_YIELD: u32 = 16;

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
    /// Runs `start`, and serves on this thread what was started, there or elsewhere, until all of it is done, or nothing comes any more: then
    /// the pollers go on with it. If another thread serves already, or nobody but pollers may, it only runs `start`.
    pub(crate) fn serve<R>(&self, start: impl FnOnce() -> R) -> R {
        if !self.may_be_served || super::in_callback() || self.serving.swap(true, Ordering::SeqCst) {
            return start();
        }
        let _serving = Serving(self);
        let result = start();
        self.serve_what_was_started();
        result
    }

    /// True if a thread serves all that is started, and sees to the rest when it leaves.
    pub(super) fn is_served(&self) -> bool {
        self.serving.load(Ordering::SeqCst)
    }

    fn serve_what_was_started(&self) {
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        let (mut vain, mut last): (u32, Option<Instant>) = (0, None);
        while self.queued.load(Ordering::SeqCst) > 0 && !self.stopping.load(Ordering::SeqCst) {
            let outstanding = (0..self.attendances.len()).filter(|index| !self.seats[*index].is_idle(*index));
            let found: usize =
                outstanding.filter_map(|index| self.attendances[index].glance(&self.stats, &dispatch)).sum();
            if found > 0 {
                (vain, last) = (0, None);
                continue;
            }
            vain += 1;
            if !vain.is_multiple_of(LOOKS_PER_YIELD) {
                spin_loop();
                continue;
            }
            let now = now();
            if now.saturating_duration_since(*last.get_or_insert(now)) > PATIENCE {
                return;
            }
            yield_now();
        }
    }
}
