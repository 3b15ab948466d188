//! The thread that pins session threads to a core, and unpins them.
//!
//! [`Guard`] looks at all session threads once per tick while threads are pinned or may be.
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
    NOBODY, SEVERAL, Shared,
    depth::Samples,
    habit::{Habit, Seen, Whom, Wish},
    policy::Scheduler,
    seat::{Seat, Tally},
};

/// Interval between two looks. A starving thread is unpinned within three ticks.
const TICK: Duration = Duration::from_millis(4);
/// Ticks between two searches for pinned threads that session threads have started.
const STRAYS: u32 = 32;

/// A session thread, as the guard knows it.
struct Known {
    seat: Arc<Seat>,
    /// Tally at the last tick.
    tally: Tally,
    samples: Samples,
    is_bound: bool,
}

/// State of the guard.
pub(super) struct Guard<S> {
    shared: Arc<Shared>,
    scheduler: S,
    habit: Habit,
    known: Vec<Known>,
    /// Core to which threads are pinned for several callers.
    place: Option<usize>,
    /// Core where pinning did harm last. The process that the callers wait for may run there.
    harmful: Option<usize>,
    /// Number of ticks since pinning began.
    ticks: u32,
}

impl<S: Scheduler> Guard<S> {
    pub(super) fn new(shared: Arc<Shared>, scheduler: S, habit: Habit) -> Guard<S> {
        Guard { shared, scheduler, habit, known: Vec::new(), place: None, harmful: None, ticks: 0 }
    }

    /// Runs the guard until the mount ends.
    pub(super) fn run(mut self) {
        let mut wish = Wish::Rest;
        loop {
            let ticked = self.wait(wish);
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            wish = match wish {
                // Work from before the pause does not count.
                Wish::Rest | Wish::Pause(_) | Wish::Later(_) | Wish::Overlap(_) => {
                    self.observe(true);
                    Wish::Watch
                }
                _ => self.step(ticked),
            };
        }
        self.lift();
    }

    /// Waits as decided. Returns true after the full time, and false if a session thread has woken
    /// the guard before.
    fn wait(&self, wish: Wish) -> bool {
        let shared = &*self.shared;
        let ticks = match wish {
            Wish::Rest | Wish::Doubt(_) => {
                // A request between this store and `park` does not wake the guard. Later requests
                // do.
                shared.asleep.store(true, Ordering::Relaxed);
                thread::park();
                shared.asleep.store(false, Ordering::Relaxed);
                return true;
            }
            Wish::Watch | Wish::Follow(_) => 1,
            Wish::Pause(ticks) | Wish::Later(ticks) | Wish::Overlap(ticks) => ticks,
        };
        let end = Instant::now() + TICK * ticks;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || shared.stop.load(Ordering::Relaxed) {
                return true;
            }
            thread::park_timeout(left);
            if matches!(wish, Wish::Follow(_)) && Instant::now() < end {
                return false;
            }
        }
    }

    /// Looks at the session threads, and acts on the decision. Returns how to wait for the next
    /// look.
    pub(super) fn step(&mut self, ticked: bool) -> Wish {
        let seen = self.observe(ticked);
        let wish = if ticked { self.habit.look(&seen) } else { self.habit.glance(&seen) };
        match wish {
            Wish::Follow(whom) => self.follow(whom, &seen, ticked),
            Wish::Doubt(whom) => {
                let starved = self.is_starved(whom);
                if !starved {
                    self.lift();
                    return Wish::Rest;
                }
                self.lift_from_harm();
                self.shared.rescues.fetch_add(1, Ordering::Relaxed);
                self.habit.failed(whom)
            }
            Wish::Pause(_) => {
                self.lift_from_harm();
                self.shared.rescues.fetch_add(1, Ordering::Relaxed);
                wish
            }
            Wish::Rest | Wish::Watch | Wish::Later(_) | Wish::Overlap(_) => {
                self.lift();
                if matches!(wish, Wish::Overlap(_)) {
                    self.shared.overlaps.fetch_add(1, Ordering::Relaxed);
                }
                wish
            }
        }
    }

    /// Returns the work of each session thread since the last tick.
    fn observe(&mut self, ticked: bool) -> Vec<Seen> {
        {
            let seats = self.shared.seats.lock();
            for seat in &seats[self.known.len()..] {
                let seat = Arc::clone(seat);
                let (tally, samples) = Default::default();
                self.known.push(Known { seat, tally, samples, is_bound: false });
            }
        }
        let look = |known: &mut Known| {
            let (tally, samples) = (known.seat.tally(), known.seat.samples());
            let seen = Seen { samples: samples.since(known.samples), ..tally.since(known.tally) };
            if ticked {
                (known.tally, known.samples) = (tally, samples);
            }
            seen
        };
        self.known.iter_mut().map(look).collect()
    }

    fn follow(&mut self, whom: Whom, seen: &[Seen], ticked: bool) -> Wish {
        let (core, followed) = match whom {
            Whom::One(caller) => (self.scheduler.core_of(caller), caller),
            Whom::Several => (self.place.or_else(|| self.core_of_most(seen)), SEVERAL),
        };
        let Some(core) = core else {
            self.lift();
            return self.habit.stop();
        };
        self.place = (whom == Whom::Several).then_some(core);
        for known in self.known.iter_mut().filter(|known| !known.is_bound) {
            // Also after a failure, which may have changed only the policy.
            known.is_bound = true;
            if let Err(e) = self.scheduler.bind(known.seat.tid(), core) {
                log::debug!("cannot pin a session thread to core {core}: {e}");
                self.lift();
                return self.habit.failed(whom);
            }
        }
        if self.shared.followed.swap(followed, Ordering::SeqCst) != followed {
            self.shared.follows.fetch_add(1, Ordering::Relaxed);
            self.ticks = 0;
        }
        self.ticks += u32::from(ticked);
        if ticked && self.ticks.is_multiple_of(STRAYS) {
            let seats: Vec<Pid> = self.known.iter().map(|known| known.seat.tid()).collect();
            self.scheduler.lift_all_but(&seats);
        }
        Wish::Follow(whom)
    }

    /// Returns the core of most work, by the last caller of each session thread. Prefers other
    /// cores than the one where pinning did harm.
    fn core_of_most(&mut self, seen: &[Seen]) -> Option<usize> {
        let mut cores: Vec<(usize, u32)> = Vec::new();
        for seen in seen.iter().filter(|seen| seen.work > 0) {
            let Some(core) = self.scheduler.core_of(seen.caller) else { continue };
            match cores.iter_mut().find(|(known, _)| *known == core) {
                Some((_, work)) => *work += seen.work,
                None => cores.push((core, seen.work)),
            }
        }
        let harmful = self.harmful;
        cores.into_iter().max_by_key(|(core, work)| (Some(*core) != harmful, *work)).map(|(core, _)| core)
    }

    /// Returns true if a pinned thread is runnable but does not run, while its caller waits. A
    /// caller that computes also keeps pinned threads from running, but does no harm. Of several
    /// callers, one may compute while another one waits.
    fn is_starved(&mut self, whom: Whom) -> bool {
        let bound = self.known.iter().filter(|known| known.is_bound);
        let mut tids = bound.map(|known| known.seat.tid().as_raw_nonzero().get().unsigned_abs());
        tids.any(|tid| self.scheduler.is_runnable(tid))
            && match whom {
                Whom::One(caller) => !self.scheduler.is_runnable(caller),
                Whom::Several => true,
            }
    }

    /// Unpins threads, and records that pinning did harm on their core.
    fn lift_from_harm(&mut self) {
        self.harmful = self.place.or(self.harmful);
        self.lift();
    }

    /// Unpins all threads. It first moves them to different cores, because a busy thread never
    /// wakes up elsewhere and would stay.
    fn lift(&mut self) {
        self.shared.followed.store(NOBODY, Ordering::SeqCst);
        self.place = None;
        let mut stays = None;
        for known in self.known.iter_mut().filter(|known| known.is_bound) {
            known.is_bound = false;
            let tid = known.seat.tid();
            let first = *stays.get_or_insert(tid);
            if first == tid {
                continue;
            }
            // The thread may have noticed the reset and unpinned itself meanwhile. So unpin it even
            // if it is not SCHED_IDLE: the separation must not last.
            if let Err(e) = self.scheduler.part(tid, first).and(self.scheduler.lift(tid)) {
                log::debug!("cannot separate session threads: {e}");
            }
        }
        if stays.is_some() {
            self.scheduler.lift_all_but(&[]);
        }
    }
}

#[cfg(test)]
mod tests;
