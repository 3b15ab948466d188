//! Whom to follow, and for how long. Pure: time is looks, one per tick of the guard.

/// Work for one caller within a tick that makes it worth following.
const DENSE: u32 = 32;
/// With less than this within a tick it is no more.
const SPARSE: u32 = 8;
/// So many ticks in a row have to be dense before, and sparse after.
const IN_A_ROW: u32 = 2;
/// Ticks that begin with a caller followed and tell nothing: threads are being moved.
const SETTLING: u32 = 1;
/// How long nobody is followed after a failure, in ticks: the first time, and at most.
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 4096;
/// Ticks without a failure that make it forgotten.
const CALM: u32 = 256;
/// After so many ticks of following nobody is followed for a moment, to see what comes then: the first time, and at most. What a caller
/// does may have changed since it was compared.
const FIRST_TRIAL: u32 = 64;
const LAST_TRIAL: u32 = 4096;
/// Ticks that begin such a moment and tell nothing: who is bound no more stays where it is until the kernel moves it.
const SPREADING: u32 = 2;

/// What a session thread has served since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// How much work: requests, and what they move.
    pub(super) work: u32,
    /// The thread that made the last of them.
    pub(super) caller: u32,
    /// How much of it came in a row; may be more than `work`.
    pub(super) run: u32,
}

/// What a look says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nobody is worth following. Look again when somebody may be.
    Rest,
    /// Somebody may be: look again after a tick.
    Watch,
    /// Serve this caller where it runs.
    Follow(u32),
    /// Little has come from the caller that was followed: either it has little to ask, or nobody has had time to serve it.
    /// Who finds the latter says so to [`Habit::failed`].
    Doubt(u32),
    /// Look again after so many ticks.
    Pause(u32),
}

/// Work since the last look, of all session threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    None,
    /// For one caller.
    Sole(u32, u32),
    Mixed,
}

impl Traffic {
    fn of(seen: &[Seen]) -> Traffic {
        seen.iter().filter(|seat| seat.work > 0).fold(Traffic::None, |traffic, seat| match traffic {
            _ if seat.run < seat.work => Traffic::Mixed,
            Traffic::None => Traffic::Sole(seat.caller, seat.work),
            Traffic::Sole(caller, work) if caller == seat.caller => {
                Traffic::Sole(caller, work.saturating_add(seat.work))
            }
            Traffic::Sole(..) | Traffic::Mixed => Traffic::Mixed,
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
    caller: u32,
    ticks: u32,
    /// Work in these.
    work: u32,
}

/// Who calls, and what has come of following.
#[derive(Debug)]
pub(super) struct Habit {
    state: State,
    pause: u32,
    calm: u32,
    /// Who was followed last, and after how many ticks of that there is a trial.
    tried: (u32, u32),
}

impl Habit {
    pub(super) fn new() -> Habit {
        Habit { state: State::Alone(None), pause: FIRST_PAUSE, calm: 0, tried: (0, FIRST_TRIAL) }
    }

    /// Judges what came within a tick.
    pub(super) fn look(&mut self, seen: &[Seen]) -> Wish {
        let traffic = Traffic::of(seen);
        match self.state {
            State::Alone(candidate) => self.choose(candidate, traffic),
            State::Spreading(ticks) => {
                self.state = if ticks > 1 { State::Spreading(ticks - 1) } else { State::Alone(None) };
                Wish::Watch
            }
            State::Following { candidate, ticks, sparse, after } => {
                let work = match traffic {
                    Traffic::Sole(caller, work) if caller == candidate.caller => work,
                    Traffic::None => 0,
                    Traffic::Sole(..) | Traffic::Mixed => return self.stop(),
                };
                self.go_on(candidate, work, (ticks + 1, sparse, after))
            }
        }
    }

    /// Judges what came within less than a tick: only whether somebody else calls, too.
    pub(super) fn glance(&mut self, seen: &[Seen]) -> Wish {
        let State::Following { candidate: Candidate { caller, .. }, .. } = self.state else {
            return Wish::Watch;
        };
        match Traffic::of(seen) {
            Traffic::None => Wish::Follow(caller),
            Traffic::Sole(other, _) if other == caller => Wish::Follow(caller),
            Traffic::Sole(..) | Traffic::Mixed => self.stop(),
        }
    }

    /// Nobody is followed any more.
    pub(super) fn stop(&mut self) -> Wish {
        self.state = State::Alone(None);
        Wish::Rest
    }

    /// Following was of harm. Each time in a row keeps from it for twice as long.
    pub(super) fn failed(&mut self) -> Wish {
        self.state = State::Alone(None);
        self.tried.1 = FIRST_TRIAL;
        self.calm = 0;
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Wish::Pause(pause)
    }

    fn choose(&mut self, candidate: Option<Candidate>, traffic: Traffic) -> Wish {
        let Traffic::Sole(caller, work @ DENSE..) = traffic else { return self.stop() };
        let candidate = match candidate {
            Some(known) if known.caller == caller => {
                Candidate { ticks: known.ticks + 1, work: known.work.saturating_add(work), caller }
            }
            _ => Candidate { caller, ticks: 1, work },
        };
        if candidate.ticks < IN_A_ROW {
            self.state = State::Alone(Some(candidate));
            return Wish::Watch;
        }
        if self.tried.0 != caller {
            self.tried = (caller, FIRST_TRIAL);
        }
        self.state = State::Following { candidate, ticks: 0, sparse: 0, after: 0 };
        Wish::Follow(caller)
    }

    fn go_on(&mut self, candidate: Candidate, work: u32, (ticks, sparse, after): (u32, u32, u32)) -> Wish {
        let sparse = if work < SPARSE { sparse + 1 } else { 0 };
        if sparse == IN_A_ROW {
            self.state = State::Alone(None);
            return Wish::Doubt(candidate.caller);
        }
        let after = if ticks > SETTLING { after.saturating_add(work) } else { after };
        // As many ticks as it was judged by; less work than before, by a quarter, is a failure.
        if ticks == SETTLING + IN_A_ROW && u64::from(after) * 4 < u64::from(candidate.work) * 3 {
            return self.failed();
        }
        self.calm = self.calm.saturating_add(1);
        if self.calm == CALM {
            self.pause = FIRST_PAUSE;
        }
        if ticks == self.tried.1 {
            self.tried.1 = (ticks * 2).min(LAST_TRIAL);
            self.state = State::Spreading(SPREADING);
            return Wish::Watch;
        }
        self.state = State::Following { candidate, ticks, sparse, after };
        Wish::Follow(candidate.caller)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: u32 = 11;
    const B: u32 = 12;

    fn from(caller: u32, work: u32) -> Seen {
        Seen { work, caller, run: work }
    }

    /// A habit that follows A, at 100 a tick.
    fn following() -> Habit {
        let mut habit = Habit::new();
        assert_eq!(habit.look(&[from(A, 60), from(A, 40)]), Wish::Watch);
        assert_eq!(habit.look(&[from(A, 100), from(B, 0)]), Wish::Follow(A));
        habit
    }

    /// Follows for so many ticks.
    fn goes_on(habit: &mut Habit, ticks: u32) {
        for _ in 0..ticks {
            assert_eq!(habit.look(&[from(A, 100)]), Wish::Follow(A));
            assert_eq!(habit.glance(&[from(A, 1)]), Wish::Follow(A));
        }
    }

    #[test]
    fn one_who_asks_a_lot_is_followed_for_as_long() {
        let mut habit = following();
        goes_on(&mut habit, FIRST_TRIAL / 2);
        assert_eq!(habit.look(&[from(A, SPARSE - 1)]), Wish::Follow(A));
        assert_eq!(habit.look(&[from(A, SPARSE)]), Wish::Follow(A));
        assert_eq!(habit.look(&[]), Wish::Follow(A));
        assert_eq!(habit.look(&[]), Wish::Doubt(A));
        assert_eq!(habit.look(&[]), Wish::Rest);
    }

    /// What comes when nobody is followed, and what comes of that.
    fn try_without(habit: &mut Habit, without: u32) -> Wish {
        assert_eq!(habit.look(&[from(A, 100)]), Wish::Watch);
        for _ in 0..SPREADING {
            assert_eq!(habit.glance(&[from(A, 1)]), Wish::Watch);
            assert_eq!(habit.look(&[from(A, 1)]), Wish::Watch, "it tells nothing");
        }
        assert_eq!(habit.look(&[from(A, without)]), Wish::Watch);
        assert_eq!(habit.look(&[from(A, without)]), Wish::Follow(A));
        goes_on(habit, SETTLING + IN_A_ROW - 1);
        habit.look(&[from(A, 100)])
    }

    #[test]
    fn whether_following_still_pays_is_tried_ever_more_rarely() {
        let mut habit = following();
        goes_on(&mut habit, FIRST_TRIAL - 1);
        let mut trial = FIRST_TRIAL;
        while trial < LAST_TRIAL {
            trial *= 2;
            assert_eq!(try_without(&mut habit, 100), Wish::Follow(A));
            goes_on(&mut habit, trial - SETTLING - IN_A_ROW - 1);
        }
        assert_eq!(try_without(&mut habit, 90), Wish::Follow(A));
        goes_on(&mut habit, LAST_TRIAL - SETTLING - IN_A_ROW - 1);
        assert_eq!(try_without(&mut habit, 140), Wish::Pause(FIRST_PAUSE));
        // After that it is not taken on trust.
        habit.look(&[from(A, 100)]);
        goes_on(&mut habit, FIRST_TRIAL);
        assert_eq!(try_without(&mut habit, 100), Wish::Follow(A));
    }

    #[test]
    fn others_end_it_at_once() {
        let nobodys = Seen { work: 50, caller: A, run: 0 };
        for seen in [[from(A, 50), from(B, 1)], [from(A, 50), nobodys], [from(B, 0), from(B, 90)]] {
            assert_eq!(following().look(&seen), Wish::Rest);
            let mut habit = following();
            assert_eq!(habit.glance(&seen), Wish::Rest);
            assert_eq!(habit.glance(&[from(A, 1)]), Wish::Watch);
        }
    }

    #[test]
    fn little_is_not_followed() {
        let mut habit = Habit::new();
        for _ in 0..10 {
            assert_eq!(habit.look(&[from(A, DENSE / 2), from(A, DENSE / 2 - 1)]), Wish::Rest);
        }
        assert_eq!(habit.look(&[from(A, DENSE)]), Wish::Watch);
        assert_eq!(habit.look(&[from(B, DENSE)]), Wish::Watch, "another one begins anew");
        assert_eq!(habit.look(&[from(B, DENSE)]), Wish::Follow(B));
    }

    #[test]
    fn slower_than_before_is_a_failure() {
        for (each, last) in [(74, Wish::Pause(FIRST_PAUSE)), (75, Wish::Follow(A))] {
            // 200 in two ticks before; then some that do not count, and two that do.
            let mut habit = following();
            for _ in 0..SETTLING {
                assert_eq!(habit.look(&[from(A, SPARSE)]), Wish::Follow(A));
            }
            assert_eq!(habit.look(&[from(A, each)]), Wish::Follow(A));
            assert_eq!(habit.look(&[from(A, each)]), last);
        }
    }

    #[test]
    fn failures_in_a_row_keep_from_it_for_longer_and_longer() {
        let mut habit = following();
        let mut pause = FIRST_PAUSE;
        while pause < LONGEST_PAUSE {
            assert_eq!(habit.failed(), Wish::Pause(pause));
            pause *= 2;
        }
        assert_eq!(habit.failed(), Wish::Pause(LONGEST_PAUSE));
        assert_eq!(habit.failed(), Wish::Pause(LONGEST_PAUSE));
        habit.look(&[from(A, 100)]);
        for _ in 0..2 * CALM {
            habit.look(&[from(A, 100)]);
        }
        assert_eq!(habit.failed(), Wish::Pause(FIRST_PAUSE));
    }

    /// Often as those of one who is followed, at times anything.
    fn look() -> impl Strategy<Value = Vec<Seen>> {
        let work = prop_oneof![Just(0), 0..SPARSE, 0..3 * DENSE];
        let seat = (work, A..=B, 0..4 * DENSE);
        let seat = seat.prop_map(|(work, caller, run)| Seen { work, caller, run });
        prop_oneof![
            4 => (0..2 * DENSE).prop_map(|work| vec![from(A, DENSE), from(A, work)]),
            1 => (0..SPARSE).prop_map(|work| vec![from(A, work)]),
            1 => prop::collection::vec(seat, 0..4),
        ]
    }

    proptest! {
        /// Whoever is followed has been the only one who called, since before that and until now.
        #[test]
        fn only_a_sole_caller_is_followed(looks in prop::collection::vec(look(), 0..60)) {
            let mut habit = Habit::new();
            let mut before: Option<Wish> = None;
            for seen in &looks {
                let served = seen.iter().filter(|seat| seat.work > 0);
                let work: u32 = served.clone().map(|seat| seat.work).sum();
                let sole = |caller| served.clone().all(|seat| seat.caller == caller && seat.run >= seat.work);
                let wish = habit.look(seen);
                match (before, wish) {
                    (Some(Wish::Follow(old)), Wish::Follow(new)) => {
                        prop_assert_eq!(old, new);
                        prop_assert!(sole(new));
                    }
                    (Some(Wish::Watch), Wish::Follow(new)) => prop_assert!(sole(new) && work >= DENSE),
                    (Some(Wish::Follow(old)), Wish::Doubt(who)) => {
                        prop_assert_eq!(old, who);
                        prop_assert!(sole(who) && work < SPARSE);
                    }
                    (Some(Wish::Follow(_)), Wish::Pause(pause)) => {
                        prop_assert!((FIRST_PAUSE..=LONGEST_PAUSE).contains(&pause));
                    }
                    (_, Wish::Follow(_) | Wish::Doubt(_) | Wish::Pause(_)) => prop_assert!(false, "{before:?} {wish:?}"),
                    (_, Wish::Watch | Wish::Rest) => {}
                }
                before = Some(wish);
            }
        }
    }
}
