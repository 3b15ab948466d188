//! The thread that pins session threads to a core, and unpins them.
//!
//! [`Monitor`] looks at all session threads once per tick while threads are pinned or may be.
//! Otherwise it sleeps, and unpins all threads before. So it watches every pinned thread: a
//! SCHED_IDLE thread hardly runs on a core that another thread keeps busy.
//!
//! # Concurrency
//! One thread per mount. It takes the lock over the list of session threads once per tick.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::Pid;

use super::{
    affinity_state::{AffinityState, SEVERAL},
    overlap::Samples,
    pin_policy::{PinDecision, PinPolicy, PinTarget, ThreadWork},
    sched::Scheduler,
    thread_stats::{NO_THREAD, Tally, ThreadStats},
};

/// Interval between two looks. A starving thread is unpinned within three ticks.
const TICK: Duration = Duration::from_millis(4);
/// Ticks between two searches for pinned threads that session threads have started.
const STRAY_SEARCH_TICKS: u32 = 32;

/// A session thread, as the monitor knows it.
struct Watched {
    stats: Arc<ThreadStats>,
    /// Tally at the last tick.
    tally: Tally,
    samples: Samples,
    is_pinned: bool,
}

/// State of the monitor.
pub(super) struct Monitor<S> {
    shared: Arc<AffinityState>,
    scheduler: S,
    policy: PinPolicy,
    watched: Vec<Watched>,
    /// Core to which threads are pinned for several callers.
    shared_core: Option<usize>,
    /// Core where pinning did harm last. The process that the callers wait for may run there.
    harmful_core: Option<usize>,
    /// Number of ticks since pinning began.
    ticks: u32,
}

impl<S: Scheduler> Monitor<S> {
    pub(super) fn new(shared: Arc<AffinityState>, scheduler: S, policy: PinPolicy) -> Monitor<S> {
        Monitor {
            shared,
            scheduler,
            policy,
            watched: Vec::new(),
            shared_core: None,
            harmful_core: None,
            ticks: 0,
        }
    }

    /// Runs the monitor until the mount ends.
    pub(super) fn run(mut self) {
        let mut decision = PinDecision::Sleep;
        loop {
            let ticked = self.wait(decision);
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            decision = match decision {
                // Work from before the pause does not count.
                PinDecision::Sleep
                | PinDecision::BackOff(_)
                | PinDecision::Defer(_)
                | PinDecision::Overlap(_) => {
                    self.observe(true);
                    PinDecision::Observe
                }
                _ => self.step(ticked),
            };
        }
        self.unpin();
    }

    /// Waits as decided. Returns true after the full time, and false if a session thread has woken
    /// the monitor before.
    fn wait(&self, decision: PinDecision) -> bool {
        let shared = &*self.shared;
        let ticks = match decision {
            PinDecision::Sleep | PinDecision::CheckStarvation(_) => {
                // A request between this store and `park` does not wake the monitor. Later requests
                // do.
                shared.asleep.store(true, Ordering::Relaxed);
                thread::park();
                shared.asleep.store(false, Ordering::Relaxed);
                return true;
            }
            PinDecision::Observe | PinDecision::Pin(_) => 1,
            PinDecision::BackOff(ticks) | PinDecision::Defer(ticks) | PinDecision::Overlap(ticks) => ticks,
        };
        let end = Instant::now() + TICK * ticks;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || shared.stop.load(Ordering::Relaxed) {
                return true;
            }
            thread::park_timeout(left);
            if matches!(decision, PinDecision::Pin(_)) && Instant::now() < end {
                return false;
            }
        }
    }

    /// Looks at the session threads, and acts on the decision. Returns how to wait for the next
    /// look.
    pub(super) fn step(&mut self, ticked: bool) -> PinDecision {
        let observed = self.observe(ticked);
        let decision = if ticked { self.policy.on_tick(&observed) } else { self.policy.on_wake(&observed) };
        match decision {
            PinDecision::Pin(target) => self.pin(target, &observed, ticked),
            PinDecision::CheckStarvation(target) => {
                let starved = self.is_starved(target);
                if !starved {
                    self.unpin();
                    return PinDecision::Sleep;
                }
                self.unpin_after_harm();
                self.shared.rescues.fetch_add(1, Ordering::Relaxed);
                self.policy.report_harm(target)
            }
            PinDecision::BackOff(_) => {
                self.unpin_after_harm();
                self.shared.rescues.fetch_add(1, Ordering::Relaxed);
                decision
            }
            PinDecision::Sleep | PinDecision::Observe | PinDecision::Defer(_) | PinDecision::Overlap(_) => {
                self.unpin();
                if matches!(decision, PinDecision::Overlap(_)) {
                    self.shared.overlaps.fetch_add(1, Ordering::Relaxed);
                }
                decision
            }
        }
    }

    /// Returns the work of each session thread since the last tick.
    fn observe(&mut self, ticked: bool) -> Vec<ThreadWork> {
        {
            let session_threads = self.shared.session_threads.lock();
            for stats in &session_threads[self.watched.len()..] {
                let stats = Arc::clone(stats);
                let (tally, samples) = Default::default();
                self.watched.push(Watched { stats, tally, samples, is_pinned: false });
            }
        }
        let look = |watched: &mut Watched| {
            let (tally, samples) = (watched.stats.tally(), watched.stats.samples());
            let observed =
                ThreadWork { samples: samples.since(watched.samples), ..tally.since(watched.tally) };
            if ticked {
                (watched.tally, watched.samples) = (tally, samples);
            }
            observed
        };
        self.watched.iter_mut().map(look).collect()
    }

    fn pin(&mut self, target: PinTarget, observed: &[ThreadWork], ticked: bool) -> PinDecision {
        let (core, pinned_to) = match target {
            PinTarget::One(caller) => (self.scheduler.core_of(caller), caller),
            PinTarget::Several => (self.shared_core.or_else(|| self.busiest_core(observed)), SEVERAL),
        };
        let Some(core) = core else {
            self.unpin();
            return self.policy.stop();
        };
        self.shared_core = (target == PinTarget::Several).then_some(core);
        for watched in self.watched.iter_mut().filter(|watched| !watched.is_pinned) {
            // Also after a failure, which may have changed only the policy.
            watched.is_pinned = true;
            if let Err(e) = self.scheduler.pin(watched.stats.tid(), core) {
                log::debug!("cannot pin a session thread to core {core}: {e}");
                self.unpin();
                return self.policy.report_harm(target);
            }
        }
        if self.shared.pinned_to.swap(pinned_to, Ordering::SeqCst) != pinned_to {
            self.shared.pins.fetch_add(1, Ordering::Relaxed);
            self.ticks = 0;
        }
        self.ticks += u32::from(ticked);
        if ticked && self.ticks.is_multiple_of(STRAY_SEARCH_TICKS) {
            let session_threads: Vec<Pid> = self.watched.iter().map(|watched| watched.stats.tid()).collect();
            self.scheduler.unpin_all_but(&session_threads);
        }
        PinDecision::Pin(target)
    }

    /// Returns the core of most work, by the last caller of each session thread. Prefers other
    /// cores than the one where pinning did harm.
    fn busiest_core(&mut self, observed: &[ThreadWork]) -> Option<usize> {
        let mut cores: Vec<(usize, u32)> = Vec::new();
        for observed in observed.iter().filter(|observed| observed.work > 0) {
            let Some(core) = self.scheduler.core_of(observed.caller) else { continue };
            match cores.iter_mut().find(|(other, _)| *other == core) {
                Some((_, work)) => *work += observed.work,
                None => cores.push((core, observed.work)),
            }
        }
        let harmful_core = self.harmful_core;
        cores
            .into_iter()
            .max_by_key(|(core, work)| (Some(*core) != harmful_core, *work))
            .map(|(core, _)| core)
    }

    /// Returns true if a pinned thread is runnable but does not run, while its caller waits. A
    /// caller that computes also keeps pinned threads from running, but does no harm. Of several
    /// callers, one may compute while another one waits.
    fn is_starved(&mut self, target: PinTarget) -> bool {
        let pinned = self.watched.iter().filter(|watched| watched.is_pinned);
        let mut tids = pinned.map(|watched| watched.stats.tid().as_raw_nonzero().get().unsigned_abs());
        tids.any(|tid| self.scheduler.is_runnable(tid))
            && match target {
                PinTarget::One(caller) => !self.scheduler.is_runnable(caller),
                PinTarget::Several => true,
            }
    }

    /// Unpins threads, and records that pinning did harm on their core.
    fn unpin_after_harm(&mut self) {
        self.harmful_core = self.shared_core.or(self.harmful_core);
        self.unpin();
    }

    /// Unpins all threads. It first moves them to different cores, because a busy thread never
    /// wakes up elsewhere and would stay.
    fn unpin(&mut self) {
        self.shared.pinned_to.store(NO_THREAD, Ordering::SeqCst);
        self.shared_core = None;
        let mut stays = None;
        for watched in self.watched.iter_mut().filter(|watched| watched.is_pinned) {
            watched.is_pinned = false;
            let tid = watched.stats.tid();
            let first = *stays.get_or_insert(tid);
            if first == tid {
                continue;
            }
            // The thread may have noticed the reset and unpinned itself meanwhile. So unpin it even
            // if it is not SCHED_IDLE: the separation must not last.
            if let Err(e) = self.scheduler.separate(tid, first).and(self.scheduler.unpin(tid)) {
                log::debug!("cannot separate session threads: {e}");
            }
        }
        if stays.is_some() {
            self.scheduler.unpin_all_but(&[]);
        }
    }
}

#[cfg(test)]
mod tests;
