//! Decides when session threads are pinned, and for which caller.
//!
//! [`Habit`] gets the work of all session threads once per tick of the guard, and returns a
//! [`Wish`]. It pins for a caller that makes dense requests alone. It unpins if another caller
//! appears, if requests overlap, or if pinning reduces throughput. After such a failure it pauses,
//! for longer each time. From time to time it unpins to compare.
//!
//! No I/O, no locks, no clock: time is counted in ticks.

use super::depth::Samples;

/// Minimum work of a caller in a tick for pinning.
const DENSE: u32 = 32;
/// Minimum work in a tick that keeps session threads pinned.
const SPARSE: u32 = 8;
/// Number of consecutive dense ticks before pinning, and of sparse ticks before unpinning.
const IN_A_ROW: u32 = 2;
/// Ticks after pinning that are not judged, because threads are being moved.
const SETTLING: u32 = 1;
/// The same for several callers, which move to the core one by one.
const SETTLING_OF_SEVERAL: u32 = 4;
/// Ticks without pinning after a failure: the first pause, and the longest.
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 4096;
/// The longest pause for several callers. They come and go, and an attempt costs them a part of six
/// ticks.
const LONGEST_PAUSE_OF_SEVERAL: u32 = 64;
/// The longest pause after an attempt that lost more than a quarter. Several callers with a core
/// each lose far more than that.
const LONGEST_PAUSE_OF_MANY: u32 = 1024;
/// Ticks without a failure after which the pause is short again.
const CALM: u32 = 256;
/// Ticks of pinning after which a trial without pinning begins: the first, and the longest. The
/// caller's requests may have changed since the comparison.
const FIRST_TRIAL: u32 = 64;
const LAST_TRIAL: u32 = 4096;
/// The longest interval between trials for several callers.
const LAST_TRIAL_OF_SEVERAL: u32 = 256;
/// Ticks of a trial that are not judged: an unpinned thread stays on its core until the kernel
/// moves it.
const SPREADING: u32 = 2;

/// Work of a session thread in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Requests, and the bytes that they move, in units of work.
    pub(super) work: u32,
    /// The thread that made the last request.
    pub(super) caller: u32,
    /// Work of that thread in a row. May exceed `work`.
    pub(super) run: u32,
    /// Samples of overlapping reads and writes.
    pub(super) samples: Samples,
}

/// The caller or callers for which session threads are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// A thread that makes all requests. Session threads move to its core.
    One(u32),
    /// Several callers that all wait for another process. Session threads move to one core, so that
    /// no other core wakes up.
    Several,
}

impl Whom {
    /// Returns the longest interval between trials.
    fn last_trial(self) -> u32 {
        match self {
            Whom::One(_) => LAST_TRIAL,
            Whom::Several => LAST_TRIAL_OF_SEVERAL,
        }
    }

    /// Returns the number of ticks after pinning that are not judged.
    fn settling(self) -> u32 {
        match self {
            Whom::One(_) => SETTLING,
            Whom::Several => SETTLING_OF_SEVERAL,
        }
    }

    /// Returns true if pinning keeps throughput, by the work of as many ticks before and now.
    /// `is_first` is true for the first comparison. One caller may lose a quarter at first, and
    /// later any amount, because its own behavior may change. Several callers may lose nothing at
    /// first, because two cores may serve them better. Later they may lose a quarter, because the
    /// process that they wait for may have moved to their core.
    fn is_content(self, is_first: bool, before: u32, now: u32) -> bool {
        let (before, now) = (u64::from(before), u64::from(now));
        match (self, is_first) {
            (Whom::Several, true) => now >= before,
            (Whom::One(_), true) | (Whom::Several, false) => now * 4 >= before * 3,
            (Whom::One(_), false) => true,
        }
    }
}

/// Decision of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// No caller is worth pinning for. Sleep until a caller may be.
    Rest,
    /// A caller may be worth it. Look again after a tick.
    Watch,
    /// Pin session threads for this target.
    Follow(Whom),
    /// Little work has come from the target. Either it makes few requests, or the pinned threads
    /// starve. In the latter case the guard calls [`Habit::failed`].
    Doubt(Whom),
    /// Pinning did harm. Unpin, and look again after this number of ticks.
    Pause(u32),
    /// Pinning for several callers did harm recently. Look again after this number of ticks.
    Later(u32),
    /// The caller does not block for each answer. Look again after this number of ticks.
    Overlap(u32),
}

/// Returns true if at least half of a tick's samples overlap. Some samples of a blocking caller may
/// overlap, because the kernel's further request can be a FORGET.
fn overlaps(seen: &[Seen]) -> bool {
    let sum =
        |count: fn(&Samples) -> u32| seen.iter().map(|seen| u64::from(count(&seen.samples))).sum::<u64>();
    let (taken, overlapping) = (sum(|samples| samples.taken), sum(|samples| samples.overlapping));
    overlapping > 0 && 2 * overlapping >= taken
}

/// Work of all session threads in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    None,
    /// Work for one caller: the thread, and the amount.
    Sole(u32, u32),
    /// Work for several callers.
    Several(u32),
    /// Much of the work is the kernel's own.
    Mixed,
}

impl Traffic {
    fn of(seen: &[Seen]) -> Traffic {
        seen.iter().filter(|seat| seat.work > 0).fold(Traffic::None, |traffic, seat| match traffic {
            _ if seat.run == 0 => Traffic::Mixed,
            Traffic::None if seat.run >= seat.work => Traffic::Sole(seat.caller, seat.work),
            Traffic::None => Traffic::Several(seat.work),
            Traffic::Sole(caller, work) if caller == seat.caller && seat.run >= seat.work => {
                Traffic::Sole(caller, work.saturating_add(seat.work))
            }
            Traffic::Sole(_, work) | Traffic::Several(work) => {
                Traffic::Several(work.saturating_add(seat.work))
            }
            Traffic::Mixed => Traffic::Mixed,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not pinned. A candidate has had dense ticks.
    Alone(Option<Candidate>),
    /// In a trial without pinning, for this number of further ticks that are not judged.
    Spreading(u32),
    Following {
        candidate: Candidate,
        ticks: u32,
        sparse: u32,
        after: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    whom: Whom,
    ticks: u32,
    /// Work in `ticks` ticks.
    work: u32,
}

/// Recent failures of pinning.
#[derive(Debug)]
struct Failures {
    /// Ticks of the next pause.
    pause: u32,
    /// Ticks since the last failure.
    calm: u32,
}

impl Failures {
    const fn none() -> Failures {
        Failures { pause: FIRST_PAUSE, calm: 0 }
    }

    /// Counts a failure. Returns the number of ticks without pinning, up to `longest`.
    fn add(&mut self, longest: u32) -> u32 {
        self.calm = 0;
        let pause = self.pause.min(longest);
        self.pause = (pause * 2).min(longest);
        pause
    }

    /// Counts a tick without a failure.
    fn forget(&mut self) {
        self.calm = self.calm.saturating_add(1);
        if self.calm == CALM {
            self.pause = FIRST_PAUSE;
        }
    }
}

/// State of the decision: the current target, and earlier failures.
#[derive(Debug)]
pub(super) struct Habit {
    state: State,
    /// True if threads may be pinned for several callers.
    several: bool,
    /// Failures of pinning for one caller, and for several.
    with_one: Failures,
    with_several: Failures,
    /// Further ticks in which threads are not pinned for several callers.
    rest: u32,
    /// The last target, and the ticks of pinning before its next trial.
    tried: (Option<Whom>, u32),
}

impl Habit {
    /// Creates the state before the first tick. With `several`, threads may also be pinned for
    /// several callers.
    pub(super) fn new(several: bool) -> Habit {
        Habit {
            state: State::Alone(None),
            several,
            with_one: Failures::none(),
            with_several: Failures::none(),
            rest: 0,
            tried: (None, FIRST_TRIAL),
        }
    }

    /// Decides after a full tick.
    pub(super) fn look(&mut self, seen: &[Seen]) -> Wish {
        let traffic = Traffic::of(seen);
        // Requests of several callers always overlap.
        if let Traffic::Sole(_, work) = traffic
            && !matches!(
                self.state,
                State::Following { candidate: Candidate { whom: Whom::Several, .. }, .. }
            )
            && work >= SPARSE
            && overlaps(seen)
        {
            self.state = State::Alone(None);
            return Wish::Overlap(FIRST_PAUSE);
        }
        match self.state {
            State::Alone(candidate) => self.choose(candidate, traffic),
            State::Spreading(ticks) => {
                self.state = if ticks > 1 { State::Spreading(ticks - 1) } else { State::Alone(None) };
                Wish::Watch
            }
            State::Following { candidate, ticks, sparse, after } => {
                let work = match (candidate.whom, traffic) {
                    (Whom::One(known), Traffic::Sole(caller, work)) if caller == known => work,
                    (Whom::Several, Traffic::Several(work)) => work,
                    // Too little to judge: a single caller may have been served.
                    (Whom::Several, Traffic::Sole(_, work)) if work < SPARSE => work,
                    (_, Traffic::None) => 0,
                    (_, Traffic::Sole(..) | Traffic::Several(_) | Traffic::Mixed) => return self.stop(),
                };
                self.go_on(candidate, work, (ticks + 1, sparse, after))
            }
        }
    }

    /// Decides within a tick: only whether another caller has appeared.
    pub(super) fn glance(&mut self, seen: &[Seen]) -> Wish {
        let State::Following { candidate: Candidate { whom, .. }, .. } = self.state else {
            return Wish::Watch;
        };
        match (whom, Traffic::of(seen)) {
            (_, Traffic::None) => Wish::Follow(whom),
            (Whom::One(known), Traffic::Sole(caller, _)) if caller == known => Wish::Follow(whom),
            // Part of a tick may have requests of a single caller only.
            (Whom::Several, Traffic::Sole(..) | Traffic::Several(_)) => Wish::Follow(whom),
            (_, Traffic::Sole(..) | Traffic::Several(_) | Traffic::Mixed) => self.stop(),
        }
    }

    /// Ends pinning.
    pub(super) fn stop(&mut self) -> Wish {
        self.state = State::Alone(None);
        Wish::Rest
    }

    /// Ends pinning because it did harm. Consecutive failures double the pause. Pauses for one
    /// caller and for several callers are separate, so a single caller does not wait for the pause
    /// of several.
    pub(super) fn failed(&mut self, whom: Whom) -> Wish {
        self.pause(whom, if whom == Whom::Several { LONGEST_PAUSE_OF_SEVERAL } else { LONGEST_PAUSE })
    }

    fn pause(&mut self, whom: Whom, longest: u32) -> Wish {
        self.state = State::Alone(None);
        self.tried.1 = FIRST_TRIAL;
        let pause = self.failures(whom).add(longest);
        match whom {
            Whom::One(_) => Wish::Pause(pause),
            Whom::Several => {
                self.rest = pause - FIRST_PAUSE;
                Wish::Pause(FIRST_PAUSE)
            }
        }
    }

    fn failures(&mut self, whom: Whom) -> &mut Failures {
        match whom {
            Whom::One(_) => &mut self.with_one,
            Whom::Several => &mut self.with_several,
        }
    }

    fn choose(&mut self, candidate: Option<Candidate>, traffic: Traffic) -> Wish {
        let (whom, work) = match traffic {
            Traffic::Sole(caller, work @ DENSE..) => (Whom::One(caller), work),
            Traffic::Several(work @ DENSE..) if self.several => (Whom::Several, work),
            _ => return self.stop(),
        };
        let candidate = match candidate {
            Some(known) if known.whom == whom => {
                Candidate { ticks: known.ticks + 1, work: known.work.saturating_add(work), whom }
            }
            _ => Candidate { whom, ticks: 1, work },
        };
        if candidate.ticks < IN_A_ROW {
            self.state = State::Alone(Some(candidate));
            return Wish::Watch;
        }
        if whom == Whom::Several && self.rest > 0 {
            self.rest = self.rest.saturating_sub(FIRST_PAUSE);
            self.state = State::Alone(None);
            return Wish::Later(FIRST_PAUSE);
        }
        if self.tried.0 != Some(whom) {
            self.tried = (Some(whom), FIRST_TRIAL);
        }
        self.state = State::Following { candidate, ticks: 0, sparse: 0, after: 0 };
        Wish::Follow(whom)
    }

    fn go_on(&mut self, candidate: Candidate, work: u32, (ticks, sparse, after): (u32, u32, u32)) -> Wish {
        let Candidate { whom, work: before, .. } = candidate;
        let sparse = if work < SPARSE { sparse + 1 } else { 0 };
        if sparse == IN_A_ROW {
            self.state = State::Alone(None);
            return Wish::Doubt(whom);
        }
        let settled = ticks.saturating_sub(whom.settling());
        let mut after = if settled > 0 { after.saturating_add(work) } else { after };
        // Compares as many ticks as were judged before pinning, repeatedly.
        if settled > 0 && settled.is_multiple_of(IN_A_ROW) {
            let is_first = settled == IN_A_ROW;
            if !whom.is_content(is_first, before, after) {
                // Later, the reason may be the process that the callers wait for, which may have
                // moved to their core.
                return match whom {
                    Whom::Several if is_first && !whom.is_content(false, before, after) => {
                        self.pause(whom, LONGEST_PAUSE_OF_MANY)
                    }
                    _ => self.failed(whom),
                };
            }
            after = 0;
        }
        self.failures(whom).forget();
        if ticks == self.tried.1 {
            self.tried.1 = (ticks * 2).min(whom.last_trial());
            self.state = State::Spreading(SPREADING);
            return Wish::Watch;
        }
        self.state = State::Following { candidate, ticks, sparse, after };
        Wish::Follow(whom)
    }
}

#[cfg(test)]
mod tests;
