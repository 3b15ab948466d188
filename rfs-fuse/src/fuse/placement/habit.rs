//! Whom to follow, and for how long. Pure: time is looks, one per tick of the guard.

use super::depth::Samples;

/// Work for one caller within a tick that makes it worth following.
const DENSE: u32 = 32;
/// With less than this within a tick it is no more.
const SPARSE: u32 = 8;
/// So many ticks in a row have to be dense before, and sparse after.
const IN_A_ROW: u32 = 2;
/// Ticks that begin with a caller followed and tell nothing: threads are being moved.
const SETTLING: u32 = 1;
/// The same with several, who come to that core one by one.
const SETTLING_OF_SEVERAL: u32 = 4;
/// How long nobody is followed after a failure, in ticks: the first time, and at most.
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 4096;
/// The most for several callers, who come and go: to try it costs them a part of six ticks.
const LONGEST_PAUSE_OF_SEVERAL: u32 = 64;
/// The most if the attempt took more than a quarter: several callers with a core each lose far more.
const LONGEST_PAUSE_OF_MANY: u32 = 1024;
/// Ticks without a failure that make it forgotten.
const CALM: u32 = 256;
/// After so many ticks of following nobody is followed for a moment, to see what comes then: the first time, and at most. What a caller
/// does may have changed since it was compared.
const FIRST_TRIAL: u32 = 64;
const LAST_TRIAL: u32 = 4096;
/// The most for several.
const LAST_TRIAL_OF_SEVERAL: u32 = 256;
/// Ticks that begin such a moment and tell nothing: who is bound no more stays where it is until the kernel moves it.
const SPREADING: u32 = 2;

/// What a session thread has served since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// How much work: requests, and what they move.
    pub(super) work: u32,
    /// The thread that made the last of them.
    pub(super) caller: u32,
    /// How much of it came in a row; may be more than `work`.
    pub(super) run: u32,
    /// Whether its reads and writes overlap.
    pub(super) samples: Samples,
}

/// Whom session threads go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// A thread that makes all requests: to its core, wherever that is.
    One(u32),
    /// Several, who all wait for somebody else than session threads: to one core, so that nobody is woken on another.
    Several,
}

impl Whom {
    /// After so many ticks at most it is tried what comes when he is not followed.
    fn last_trial(self) -> u32 {
        match self {
            Whom::One(_) => LAST_TRIAL,
            Whom::Several => LAST_TRIAL_OF_SEVERAL,
        }
    }

    /// So many ticks tell nothing.
    fn settling(self) -> u32 {
        match self {
            Whom::One(_) => SETTLING,
            Whom::Several => SETTLING_OF_SEVERAL,
        }
    }

    /// Whether following is right, with so much work in as many ticks before it began and now: as it has begun (`is_first`), and from then on. One caller is given
    /// the benefit of the doubt first, as what is slower for a moment may be something else, and what he asks for later is his business. Of several
    /// no less may come at first, as they may be as well off on two cores; later whoever they wait for may have come to that core, too.
    fn is_content(self, is_first: bool, before: u32, now: u32) -> bool {
        let (before, now) = (u64::from(before), u64::from(now));
        match (self, is_first) {
            (Whom::Several, true) => now >= before,
            (Whom::One(_), true) | (Whom::Several, false) => now * 4 >= before * 3,
            (Whom::One(_), false) => true,
        }
    }
}

/// What a look says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nobody is worth following. Look again when somebody may be.
    Rest,
    /// Somebody may be: look again after a tick.
    Watch,
    /// Serve this caller where it runs, or these on one core.
    Follow(Whom),
    /// Little has come from the caller that was followed: either it has little to ask, or nobody has had time to serve it.
    /// Who finds the latter says so to [`Habit::failed`].
    Doubt(Whom),
    /// It was of harm: look again after so many ticks.
    Pause(u32),
    /// Look again after so many ticks: there are callers whom to follow was of harm, not long ago.
    Later(u32),
    /// Look again after so many ticks: the caller does not block for each answer.
    Overlap(u32),
}

/// Returns true if at least half of the samples of a tick overlap. Some of a blocking caller may:
/// the further request that the kernel holds can be a FORGET.
fn overlaps(seen: &[Seen]) -> bool {
    let sum =
        |count: fn(&Samples) -> u32| seen.iter().map(|seen| u64::from(count(&seen.samples))).sum::<u64>();
    let (taken, overlapping) = (sum(|samples| samples.taken), sum(|samples| samples.overlapping));
    overlapping > 0 && 2 * overlapping >= taken
}

/// Work since the last look, of all session threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    None,
    /// For one caller.
    Sole(u32, u32),
    /// For more than one.
    Several(u32),
    /// Not only for callers.
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
    /// A caller whose requests have been dense for some ticks, if there is one.
    Alone(Option<Candidate>),
    /// Nobody is followed, for as many ticks before anything is judged.
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
    /// Work in these.
    work: u32,
}

/// What failures have come to.
#[derive(Debug)]
struct Failures {
    /// The next one keeps from following for so long.
    pause: u32,
    /// Ticks without any.
    calm: u32,
}

impl Failures {
    const fn none() -> Failures {
        Failures { pause: FIRST_PAUSE, calm: 0 }
    }

    /// Counts one more. Returns for how many ticks no caller is followed, at most `longest`.
    fn add(&mut self, longest: u32) -> u32 {
        self.calm = 0;
        let pause = self.pause.min(longest);
        self.pause = (pause * 2).min(longest);
        pause
    }

    /// A tick without any.
    fn forget(&mut self) {
        self.calm = self.calm.saturating_add(1);
        if self.calm == CALM {
            self.pause = FIRST_PAUSE;
        }
    }
}

/// Who calls, and what has come of following.
#[derive(Debug)]
pub(super) struct Habit {
    state: State,
    /// Whether several are followed at all.
    several: bool,
    /// Of following one caller.
    with_one: Failures,
    with_several: Failures,
    /// Ticks for which several are not followed although they call.
    rest: u32,
    /// Who was followed last, and after how many ticks of that there is a trial.
    tried: (Option<Whom>, u32),
}

impl Habit {
    /// One that may follow several callers, too, or one only.
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

    /// Judges what came within a tick.
    pub(super) fn look(&mut self, seen: &[Seen]) -> Wish {
        let traffic = Traffic::of(seen);
        // Several callers overlap each other in any case.
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
                    // So little that nobody can tell: one of them may be all who was served.
                    (Whom::Several, Traffic::Sole(_, work)) if work < SPARSE => work,
                    (_, Traffic::None) => 0,
                    (_, Traffic::Sole(..) | Traffic::Several(_) | Traffic::Mixed) => return self.stop(),
                };
                self.go_on(candidate, work, (ticks + 1, sparse, after))
            }
        }
    }

    /// Judges what came within less than a tick: only whether somebody else calls, too.
    pub(super) fn glance(&mut self, seen: &[Seen]) -> Wish {
        let State::Following { candidate: Candidate { whom, .. }, .. } = self.state else {
            return Wish::Watch;
        };
        match (whom, Traffic::of(seen)) {
            (_, Traffic::None) => Wish::Follow(whom),
            (Whom::One(known), Traffic::Sole(caller, _)) if caller == known => Wish::Follow(whom),
            // Within less than a tick one of several may be the only one.
            (Whom::Several, Traffic::Sole(..) | Traffic::Several(_)) => Wish::Follow(whom),
            (_, Traffic::Sole(..) | Traffic::Several(_) | Traffic::Mixed) => self.stop(),
        }
    }

    /// Nobody is followed any more.
    pub(super) fn stop(&mut self) -> Wish {
        self.state = State::Alone(None);
        Wish::Rest
    }

    /// Following was of harm. Each time in a row keeps from it for twice as long: from following one caller, or from following
    /// several, while one that is alone is looked for all the same.
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
        // In as many ticks as it was judged by, again and again.
        if settled > 0 && settled.is_multiple_of(IN_A_ROW) {
            let is_first = settled == IN_A_ROW;
            if !whom.is_content(is_first, before, after) {
                // Later it may be the process that they wait for, which has come to that core.
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
