//! The one thread that binds session threads to a core, and lifts them from it.
//!
//! It looks once per tick while somebody is followed, or may be, and sleeps otherwise; before it sleeps, it lifts all. So nobody
//! is bound whom it does not watch: a SCHED_IDLE thread on a core that somebody else keeps busy hardly runs.

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

/// From one look to the next. Who starves is lifted within three.
const TICK: Duration = Duration::from_millis(4);
/// Threads that seats have started meanwhile are lifted once in so many ticks.
const STRAYS: u32 = 32;

/// A seat, as the guard knows it.
struct Known {
    seat: Arc<Seat>,
    /// At the last look.
    tally: Tally,
    samples: Samples,
    is_bound: bool,
}

/// What it knows, and what it does in one look.
pub(super) struct Guard<S> {
    shared: Arc<Shared>,
    scheduler: S,
    habit: Habit,
    known: Vec<Known>,
    /// Where several callers are served, while they are followed.
    place: Option<usize>,
    /// Where that was of harm last: whoever they wait for may be there, too.
    harmful: Option<usize>,
    /// Ticks of following.
    ticks: u32,
}

impl<S: Scheduler> Guard<S> {
    pub(super) fn new(shared: Arc<Shared>, scheduler: S, habit: Habit) -> Guard<S> {
        Guard { shared, scheduler, habit, known: Vec::new(), place: None, harmful: None, ticks: 0 }
    }

    /// Looks until there is no mount any more.
    pub(super) fn run(mut self) {
        let mut wish = Wish::Rest;
        loop {
            let ticked = self.wait(wish);
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            wish = match wish {
                // What came before is of no interest.
                Wish::Rest | Wish::Pause(_) | Wish::Later(_) | Wish::Overlap(_) => {
                    self.observe(true);
                    Wish::Watch
                }
                _ => self.step(ticked),
            };
        }
        self.lift();
    }

    /// Waits as is wished. True if it was for as long; else there is news of whom it follows.
    fn wait(&self, wish: Wish) -> bool {
        let shared = &*self.shared;
        let ticks = match wish {
            Wish::Rest | Wish::Doubt(_) => {
                // A request between these two does not wake it: the next ones do.
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

    /// One look, and what follows from it. What it returns is how to wait for the next.
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

    /// What came since the last look.
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
            // Even if it comes only half the way.
            known.is_bound = true;
            if let Err(e) = self.scheduler.bind(known.seat.tid(), core) {
                log::debug!("a session thread cannot be bound to core {core}: {e}");
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

    /// The core where most of the work comes from, by who made the last of it for each seat; not the one where that was of harm, if there is another.
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

    /// True if a seat would run if it were let, while the caller has nothing to do but to wait: one that computes keeps seats
    /// from running, too, and nobody is the worse for it. Of several one may compute while another one waits.
    fn is_starved(&mut self, whom: Whom) -> bool {
        let bound = self.known.iter().filter(|known| known.is_bound);
        let mut tids = bound.map(|known| known.seat.tid().as_raw_nonzero().get().unsigned_abs());
        tids.any(|tid| self.scheduler.is_runnable(tid))
            && match whom {
                Whom::One(caller) => !self.scheduler.is_runnable(caller),
                Whom::Several => true,
            }
    }

    /// Lifts seats from where they did harm.
    fn lift_from_harm(&mut self) {
        self.harmful = self.place.or(self.harmful);
        self.lift();
    }

    /// Seats part first: who always has something to do is never woken, and so stays where it is, as if it were still bound.
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
            // A seat that has just found out that nobody is followed lifts itself meanwhile. So it is lifted here whether it is SCHED_IDLE or not:
            // what came of the parting must not stay.
            if let Err(e) = self.scheduler.part(tid, first).and(self.scheduler.lift(tid)) {
                log::debug!("a session thread stays beside another: {e}");
            }
        }
        if stays.is_some() {
            self.scheduler.lift_all_but(&[]);
        }
    }
}

#[cfg(test)]
mod tests;
