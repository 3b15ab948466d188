//! Decides when session threads are pinned, and for which caller.
//!
//! [`PinPolicy`] gets the work of all session threads once per tick of the monitor, and returns a
//! [`PinDecision`]. It pins for a caller that makes dense requests alone. It unpins if another
//! caller appears, if requests overlap, or if pinning reduces throughput. After such a failure it
//! pauses, for longer each time. From time to time it unpins to compare.
//!
//! No I/O, no locks, no clock: time is counted in ticks.

mod traffic;

pub(super) use self::traffic::ThreadWork;
use self::traffic::{Traffic, overlaps};

/// Minimum work of a caller in a tick for pinning.
const DENSE: u32 = 32;
/// Minimum work in a tick that keeps session threads pinned.
const SPARSE: u32 = 8;
/// Number of consecutive dense ticks before pinning, and of sparse ticks before unpinning.
const CONSECUTIVE: u32 = 2;
/// Ticks after pinning that are not judged, because threads are being moved.
const SETTLING: u32 = 1;
/// The same for several callers, which move to the core one by one.
const SETTLING_OF_SEVERAL: u32 = 4;
/// Ticks without pinning after a failure: the first pause, and the longest.
const FIRST_PAUSE: u32 = 16;
const MAX_PAUSE: u32 = 4096;
/// The longest pause for several callers. They come and go, and an attempt costs them a part of
/// six ticks.
const MAX_PAUSE_OF_SEVERAL: u32 = 64;
/// The longest pause after an attempt that lost more than a quarter. Several callers with a core
/// each lose far more than that.
const MAX_PAUSE_AFTER_LOSS: u32 = 1024;
/// Ticks without a failure after which the pause is short again.
const CALM_TICKS: u32 = 256;
/// Ticks of pinning after which a trial without pinning begins: the first, and the longest. The
/// caller's requests may have changed since the comparison.
const FIRST_TRIAL_INTERVAL: u32 = 64;
const MAX_TRIAL_INTERVAL: u32 = 4096;
/// The longest interval between trials for several callers.
const MAX_TRIAL_INTERVAL_OF_SEVERAL: u32 = 256;
/// Ticks of a trial that are not judged: an unpinned thread stays on its core until the kernel
/// moves it.
const TRIAL_SETTLING: u32 = 2;

/// The caller or callers for which session threads are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PinTarget {
    /// A thread that makes all requests. Session threads move to its core.
    One(u32),
    /// Several callers that all wait for another process. Session threads move to one core, so that
    /// no other core wakes up.
    Several,
}

impl PinTarget {
    /// Returns the longest interval between trials.
    fn max_trial_interval(self) -> u32 {
        match self {
            PinTarget::One(_) => MAX_TRIAL_INTERVAL,
            PinTarget::Several => MAX_TRIAL_INTERVAL_OF_SEVERAL,
        }
    }

    /// Returns the number of ticks after pinning that are not judged.
    fn settling_ticks(self) -> u32 {
        match self {
            PinTarget::One(_) => SETTLING,
            PinTarget::Several => SETTLING_OF_SEVERAL,
        }
    }

    /// Returns true if pinning keeps throughput, by the work of as many ticks before and now.
    /// `is_first` is true for the first comparison. One caller may lose a quarter at first, and
    /// later any amount, because its own behavior may change. Several callers may lose nothing at
    /// first, because two cores may serve them better. Later they may lose a quarter, because the
    /// process that they wait for may have moved to their core.
    fn keeps_throughput(self, is_first: bool, before: u32, now: u32) -> bool {
        let (before, now) = (u64::from(before), u64::from(now));
        match (self, is_first) {
            (PinTarget::Several, true) => now >= before,
            (PinTarget::One(_), true) | (PinTarget::Several, false) => now * 4 >= before * 3,
            (PinTarget::One(_), false) => true,
        }
    }
}

/// Decision of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PinDecision {
    /// No caller is worth pinning for. Sleep until a caller may be.
    Sleep,
    /// A caller may be worth it. Look again after a tick.
    Observe,
    /// Pin session threads for this target.
    Pin(PinTarget),
    /// Little work has come from the target. Either it makes few requests, or the pinned threads
    /// starve. In the latter case the monitor calls [`PinPolicy::report_harm`].
    CheckStarvation(PinTarget),
    /// Pinning did harm. Unpin, and look again after this number of ticks.
    BackOff(u32),
    /// Pinning for several callers did harm recently. Look again after this number of ticks.
    Defer(u32),
    /// The caller does not block for each answer. Look again after this number of ticks.
    Overlap(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not pinned. A candidate has had dense ticks.
    Unpinned(Option<Candidate>),
    /// In a trial without pinning, for this number of further ticks that are not judged.
    Trial(u32),
    Pinned {
        candidate: Candidate,
        ticks: u32,
        sparse: u32,
        after: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    target: PinTarget,
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
        if self.calm == CALM_TICKS {
            self.pause = FIRST_PAUSE;
        }
    }
}

/// State of the decision: the current target, and earlier failures.
#[derive(Debug)]
pub(super) struct PinPolicy {
    state: State,
    /// True if threads may be pinned for several callers.
    several: bool,
    /// Failures of pinning for one caller, and for several.
    with_one: Failures,
    with_several: Failures,
    /// Further ticks in which threads are not pinned for several callers.
    deferral: u32,
    /// The last target, and the ticks of pinning before its next trial.
    trial: (Option<PinTarget>, u32),
}

impl PinPolicy {
    /// Creates the state before the first tick. With `several`, threads may also be pinned for
    /// several callers.
    pub(super) fn new(several: bool) -> PinPolicy {
        PinPolicy {
            state: State::Unpinned(None),
            several,
            with_one: Failures::none(),
            with_several: Failures::none(),
            deferral: 0,
            trial: (None, FIRST_TRIAL_INTERVAL),
        }
    }

    /// Decides after a full tick.
    pub(super) fn on_tick(&mut self, observed: &[ThreadWork]) -> PinDecision {
        let traffic = Traffic::of(observed);
        // Requests of several callers always overlap.
        if let Traffic::Sole(_, work) = traffic
            && !matches!(
                self.state,
                State::Pinned { candidate: Candidate { target: PinTarget::Several, .. }, .. }
            )
            && work >= SPARSE
            && overlaps(observed)
        {
            self.state = State::Unpinned(None);
            return PinDecision::Overlap(FIRST_PAUSE);
        }
        match self.state {
            State::Unpinned(candidate) => self.choose(candidate, traffic),
            State::Trial(ticks) => {
                self.state = if ticks > 1 { State::Trial(ticks - 1) } else { State::Unpinned(None) };
                PinDecision::Observe
            }
            State::Pinned { candidate, ticks, sparse, after } => {
                let work = match (candidate.target, traffic) {
                    (PinTarget::One(known), Traffic::Sole(caller, work)) if caller == known => work,
                    (PinTarget::Several, Traffic::Several(work)) => work,
                    // Too little to judge: a single caller may have been served.
                    (PinTarget::Several, Traffic::Sole(_, work)) if work < SPARSE => work,
                    (_, Traffic::None) => 0,
                    (_, Traffic::Sole(..) | Traffic::Several(_) | Traffic::Mixed) => return self.stop(),
                };
                self.judge_pin(candidate, work, (ticks + 1, sparse, after))
            }
        }
    }

    /// Decides within a tick: only whether another caller has appeared.
    pub(super) fn on_wake(&mut self, observed: &[ThreadWork]) -> PinDecision {
        let State::Pinned { candidate: Candidate { target, .. }, .. } = self.state else {
            return PinDecision::Observe;
        };
        match (target, Traffic::of(observed)) {
            (_, Traffic::None) => PinDecision::Pin(target),
            (PinTarget::One(known), Traffic::Sole(caller, _)) if caller == known => PinDecision::Pin(target),
            // Part of a tick may have requests of a single caller only.
            (PinTarget::Several, Traffic::Sole(..) | Traffic::Several(_)) => PinDecision::Pin(target),
            (_, Traffic::Sole(..) | Traffic::Several(_) | Traffic::Mixed) => self.stop(),
        }
    }

    /// Ends pinning.
    pub(super) fn stop(&mut self) -> PinDecision {
        self.state = State::Unpinned(None);
        PinDecision::Sleep
    }

    /// Ends pinning because it did harm. Consecutive failures double the pause. Pauses for one
    /// caller and for several callers are separate, so a single caller does not wait for the pause
    /// of several.
    pub(super) fn report_harm(&mut self, target: PinTarget) -> PinDecision {
        self.back_off(target, if target == PinTarget::Several { MAX_PAUSE_OF_SEVERAL } else { MAX_PAUSE })
    }

    fn back_off(&mut self, target: PinTarget, longest: u32) -> PinDecision {
        self.state = State::Unpinned(None);
        self.trial.1 = FIRST_TRIAL_INTERVAL;
        let pause = self.failures(target).add(longest);
        match target {
            PinTarget::One(_) => PinDecision::BackOff(pause),
            PinTarget::Several => {
                self.deferral = pause - FIRST_PAUSE;
                PinDecision::BackOff(FIRST_PAUSE)
            }
        }
    }

    fn failures(&mut self, target: PinTarget) -> &mut Failures {
        match target {
            PinTarget::One(_) => &mut self.with_one,
            PinTarget::Several => &mut self.with_several,
        }
    }

    fn choose(&mut self, candidate: Option<Candidate>, traffic: Traffic) -> PinDecision {
        let (target, work) = match traffic {
            Traffic::Sole(caller, work @ DENSE..) => (PinTarget::One(caller), work),
            Traffic::Several(work @ DENSE..) if self.several => (PinTarget::Several, work),
            _ => return self.stop(),
        };
        let candidate = match candidate {
            Some(known) if known.target == target => {
                Candidate { ticks: known.ticks + 1, work: known.work.saturating_add(work), target }
            }
            _ => Candidate { target, ticks: 1, work },
        };
        if candidate.ticks < CONSECUTIVE {
            self.state = State::Unpinned(Some(candidate));
            return PinDecision::Observe;
        }
        if target == PinTarget::Several && self.deferral > 0 {
            self.deferral = self.deferral.saturating_sub(FIRST_PAUSE);
            self.state = State::Unpinned(None);
            return PinDecision::Defer(FIRST_PAUSE);
        }
        if self.trial.0 != Some(target) {
            self.trial = (Some(target), FIRST_TRIAL_INTERVAL);
        }
        self.state = State::Pinned { candidate, ticks: 0, sparse: 0, after: 0 };
        PinDecision::Pin(target)
    }

    fn judge_pin(
        &mut self,
        candidate: Candidate,
        work: u32,
        (ticks, sparse, after): (u32, u32, u32),
    ) -> PinDecision {
        let Candidate { target, work: before, .. } = candidate;
        let sparse = if work < SPARSE { sparse + 1 } else { 0 };
        if sparse == CONSECUTIVE {
            self.state = State::Unpinned(None);
            return PinDecision::CheckStarvation(target);
        }
        let settled = ticks.saturating_sub(target.settling_ticks());
        let mut after = if settled > 0 { after.saturating_add(work) } else { after };
        // Compares as many ticks as were judged before pinning, repeatedly.
        if settled > 0 && settled.is_multiple_of(CONSECUTIVE) {
            let is_first = settled == CONSECUTIVE;
            if !target.keeps_throughput(is_first, before, after) {
                // Later, the reason may be the process that the callers wait for, which may have
                // moved to their core.
                return match target {
                    PinTarget::Several if is_first && !target.keeps_throughput(false, before, after) => {
                        self.back_off(target, MAX_PAUSE_AFTER_LOSS)
                    }
                    _ => self.report_harm(target),
                };
            }
            after = 0;
        }
        self.failures(target).forget();
        if ticks == self.trial.1 {
            self.trial.1 = (ticks * 2).min(target.max_trial_interval());
            self.state = State::Trial(TRIAL_SETTLING);
            return PinDecision::Observe;
        }
        self.state = State::Pinned { candidate, ticks, sparse, after };
        PinDecision::Pin(target)
    }
}

#[cfg(test)]
mod tests;
