//! Whom to follow, and for how long. Pure: time is looks, one per tick of the guard.

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// How much work: requests, and what they move.
    pub(super) work: u32,
    /// The thread that made the last of them.
    pub(super) caller: u32,
    /// How much of it came in a row; may be more than `work`.
    pub(super) run: u32,
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

    /// Whether following was right, with so much work in as many ticks before and after. One caller is given the benefit of the doubt: what is
    /// slower for a moment may be something else. For several only more is right, as on two cores they may be as well off.
    fn is_content(self, before: u32, after: u32) -> bool {
        let (before, after) = (u64::from(before), u64::from(after));
        match self {
            Whom::One(_) => after * 4 >= before * 3,
            Whom::Several => after >= before,
        }
    }

    /// Whether it still is, with so much work before it began, and in as many ticks by now. What one caller asks for is his business.
    /// Where several are served, whoever they wait for may have come to, too, and others keep session threads from it.
    fn goes_on(self, before: u32, now: u32) -> bool {
        self != Whom::Several || u64::from(now) * 4 >= u64::from(before) * 3
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
    /// The next one keeps from following for so long, and none for longer than that.
    pause: u32,
    longest: u32,
    /// Ticks without any.
    calm: u32,
}

impl Failures {
    const fn none(longest: u32) -> Failures {
        Failures { pause: FIRST_PAUSE, longest, calm: 0 }
    }

    /// One more. For how long nobody is followed.
    fn add(&mut self) -> u32 {
        self.calm = 0;
        let pause = self.pause;
        self.pause = (pause * 2).min(self.longest);
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
            with_one: Failures::none(LONGEST_PAUSE),
            with_several: Failures::none(LONGEST_PAUSE_OF_SEVERAL),
            rest: 0,
            tried: (None, FIRST_TRIAL),
        }
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
        self.state = State::Alone(None);
        self.tried.1 = FIRST_TRIAL;
        let pause = self.failures(whom).add();
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
        let sparse = if work < SPARSE { sparse + 1 } else { 0 };
        if sparse == IN_A_ROW {
            self.state = State::Alone(None);
            return Wish::Doubt(candidate.whom);
        }
        let Candidate { whom, work: before, .. } = candidate;
        let settled = ticks.saturating_sub(whom.settling());
        let mut after = if settled > 0 { after.saturating_add(work) } else { after };
        // In as many ticks as it was judged by, again and again.
        if settled > 0 && settled.is_multiple_of(IN_A_ROW) {
            let is_first = settled == IN_A_ROW;
            if !(if is_first { whom.is_content(before, after) } else { whom.goes_on(before, after) }) {
                return self.failed(whom);
            }
            after = 0;
        }
        self.failures(candidate.whom).forget();
        if ticks == self.tried.1 {
            self.tried.1 = (ticks * 2).min(candidate.whom.last_trial());
            self.state = State::Spreading(SPREADING);
            return Wish::Watch;
        }
        self.state = State::Following { candidate, ticks, sparse, after };
        Wish::Follow(candidate.whom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Whom::One, *};

    const A: u32 = 11;
    const B: u32 = 12;

    fn from(caller: u32, work: u32) -> Seen {
        Seen { work, caller, run: work }
    }

    /// A habit that follows A, at 100 a tick.
    fn following() -> Habit {
        let mut habit = Habit::new(false);
        assert_eq!(habit.look(&[from(A, 60), from(A, 40)]), Wish::Watch);
        assert_eq!(habit.look(&[from(A, 100), from(B, 0)]), Wish::Follow(One(A)));
        habit
    }

    /// Follows for so many ticks.
    fn goes_on(habit: &mut Habit, ticks: u32) {
        for _ in 0..ticks {
            assert_eq!(habit.look(&[from(A, 100)]), Wish::Follow(One(A)));
            assert_eq!(habit.glance(&[from(A, 1)]), Wish::Follow(One(A)));
        }
    }

    #[test]
    fn one_who_asks_a_lot_is_followed_for_as_long() {
        let mut habit = following();
        goes_on(&mut habit, FIRST_TRIAL / 2);
        assert_eq!(habit.look(&[from(A, SPARSE - 1)]), Wish::Follow(One(A)));
        assert_eq!(habit.look(&[from(A, SPARSE)]), Wish::Follow(One(A)));
        assert_eq!(habit.look(&[]), Wish::Follow(One(A)));
        assert_eq!(habit.look(&[]), Wish::Doubt(One(A)));
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
        assert_eq!(habit.look(&[from(A, without)]), Wish::Follow(One(A)));
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
            assert_eq!(try_without(&mut habit, 100), Wish::Follow(One(A)));
            goes_on(&mut habit, trial - SETTLING - IN_A_ROW - 1);
        }
        assert_eq!(try_without(&mut habit, 90), Wish::Follow(One(A)));
        goes_on(&mut habit, LAST_TRIAL - SETTLING - IN_A_ROW - 1);
        assert_eq!(try_without(&mut habit, 140), Wish::Pause(FIRST_PAUSE));
        // After that it is not taken on trust.
        habit.look(&[from(A, 100)]);
        goes_on(&mut habit, FIRST_TRIAL);
        assert_eq!(try_without(&mut habit, 100), Wish::Follow(One(A)));
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
        let mut habit = Habit::new(false);
        for _ in 0..10 {
            assert_eq!(habit.look(&[from(A, DENSE / 2), from(A, DENSE / 2 - 1)]), Wish::Rest);
        }
        assert_eq!(habit.look(&[from(A, DENSE)]), Wish::Watch);
        assert_eq!(habit.look(&[from(B, DENSE)]), Wish::Watch, "another one begins anew");
        assert_eq!(habit.look(&[from(B, DENSE)]), Wish::Follow(One(B)));
    }

    #[test]
    fn slower_than_before_is_a_failure() {
        for (each, last) in [(74, Wish::Pause(FIRST_PAUSE)), (75, Wish::Follow(One(A)))] {
            // 200 in two ticks before; then some that do not count, and two that do.
            let mut habit = following();
            for _ in 0..SETTLING {
                assert_eq!(habit.look(&[from(A, SPARSE)]), Wish::Follow(One(A)));
            }
            assert_eq!(habit.look(&[from(A, each)]), Wish::Follow(One(A)));
            assert_eq!(habit.look(&[from(A, each)]), last);
        }
    }

    #[test]
    fn failures_in_a_row_keep_from_it_for_longer_and_longer() {
        let mut habit = following();
        let mut pause = FIRST_PAUSE;
        while pause < LONGEST_PAUSE {
            assert_eq!(habit.failed(One(A)), Wish::Pause(pause));
            pause *= 2;
        }
        assert_eq!(habit.failed(One(A)), Wish::Pause(LONGEST_PAUSE));
        assert_eq!(habit.failed(One(A)), Wish::Pause(LONGEST_PAUSE));
        habit.look(&[from(A, 100)]);
        for _ in 0..2 * CALM {
            habit.look(&[from(A, 100)]);
        }
        assert_eq!(habit.failed(One(A)), Wish::Pause(FIRST_PAUSE));
    }

    /// A habit that follows several, at 100 a tick.
    fn following_several() -> Habit {
        let mut habit = Habit::new(true);
        assert_eq!(habit.look(&SEVERAL), Wish::Watch);
        assert_eq!(
            habit.look(&[from(A, 60), Seen { work: 40, caller: B, run: 3 }]),
            Wish::Follow(Whom::Several)
        );
        habit
    }

    const SEVERAL: [Seen; 2] = [Seen { work: 50, caller: A, run: 50 }, Seen { work: 50, caller: B, run: 50 }];

    #[test]
    fn several_are_followed_where_that_is_wanted() {
        let mut habit = Habit::new(false);
        (0..10).for_each(|_| assert_eq!(habit.look(&SEVERAL), Wish::Rest));
        let mut habit = following_several();
        for _ in 0..SETTLING_OF_SEVERAL + IN_A_ROW {
            assert_eq!(habit.look(&SEVERAL), Wish::Follow(Whom::Several));
            for seen in [&[from(A, 1)][..], &SEVERAL, &[]] {
                assert_eq!(habit.glance(seen), Wish::Follow(Whom::Several));
            }
        }
        // One of them goes on alone.
        assert_eq!(habit.look(&[from(B, 100)]), Wish::Rest);
        assert_eq!(habit.look(&[from(B, 100)]), Wish::Watch);
        assert_eq!(habit.look(&[from(B, 100)]), Wish::Follow(One(B)));
        // What the kernel asks for on its own is nobody's.
        let nobodys = Seen { work: 50, caller: A, run: 0 };
        assert_eq!(following_several().look(&[from(A, 50), nobodys]), Wish::Rest);
        assert_eq!(following_several().glance(&[from(A, 50), nobodys]), Wish::Rest);
        assert_eq!(following_several().look(&[]), Wish::Follow(Whom::Several));
        // Where hardly anything comes through, it is hardly anybody's.
        let mut habit = following_several();
        assert_eq!(habit.look(&[from(A, 1)]), Wish::Follow(Whom::Several));
        assert_eq!(habit.look(&[from(B, SPARSE - 1)]), Wish::Doubt(Whom::Several));
    }

    /// What comes of following several if so much comes in each tick then.
    fn after_several(habit: &mut Habit, each: u32) -> Wish {
        let seen = [from(A, each / 2), from(B, each - each / 2)];
        for _ in 0..SETTLING_OF_SEVERAL + IN_A_ROW - 1 {
            assert_eq!(habit.look(&seen), Wish::Follow(Whom::Several));
        }
        habit.look(&seen)
    }

    #[test]
    fn several_are_followed_only_if_nothing_is_lost_by_it() {
        assert_eq!(after_several(&mut following_several(), 100), Wish::Follow(Whom::Several));
        assert_eq!(after_several(&mut following_several(), 99), Wish::Pause(FIRST_PAUSE));
        // And as long as that is so.
        for (each, last) in [(75, Wish::Follow(Whom::Several)), (74, Wish::Pause(FIRST_PAUSE))] {
            let mut habit = following_several();
            after_several(&mut habit, 200);
            let seen = [from(A, each), from(B, 1)];
            for _ in 1..IN_A_ROW {
                assert_eq!(habit.look(&seen), Wish::Follow(Whom::Several));
            }
            assert_eq!(habit.look(&[from(A, each - IN_A_ROW), from(B, 1)]), last);
        }
    }

    /// And meanwhile nobody who is alone has to wait for that.
    #[test]
    fn several_are_left_alone_for_longer_and_longer() {
        let mut habit = following_several();
        let pauses = [1, 2, 4, 4, 4].map(|times| times * FIRST_PAUSE);
        assert_eq!(pauses[4], LONGEST_PAUSE_OF_SEVERAL);
        for pause in pauses {
            assert_eq!(after_several(&mut habit, 50), Wish::Pause(FIRST_PAUSE));
            let alone = [from(A, 100)];
            assert_eq!(habit.look(&alone), Wish::Watch);
            assert_eq!(habit.look(&alone), Wish::Follow(One(A)));
            assert_eq!(habit.look(&SEVERAL), Wish::Rest);
            for _ in 1..pause / FIRST_PAUSE {
                assert_eq!(habit.look(&SEVERAL), Wish::Watch);
                assert_eq!(habit.look(&SEVERAL), Wish::Later(FIRST_PAUSE));
            }
            assert_eq!(habit.look(&SEVERAL), Wish::Watch);
            assert_eq!(habit.look(&SEVERAL), Wish::Follow(Whom::Several));
        }
    }

    /// They come and go: whether it still pays is tried more often than with one.
    #[test]
    fn following_several_is_tried_as_long_as_it_lasts() {
        let mut habit = following_several();
        for trial in [FIRST_TRIAL, 2 * FIRST_TRIAL, LAST_TRIAL_OF_SEVERAL, LAST_TRIAL_OF_SEVERAL] {
            for _ in 1..trial {
                assert_eq!(habit.look(&SEVERAL), Wish::Follow(Whom::Several));
            }
            for _ in 0..1 + SPREADING + 1 {
                assert_eq!(habit.look(&SEVERAL), Wish::Watch);
            }
            assert_eq!(habit.look(&SEVERAL), Wish::Follow(Whom::Several));
        }
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
        /// Whoever is followed has been the only one who called, since before that and until now; or they have been several, if they may be.
        #[test]
        fn nobody_else_calls_than_who_is_followed(several: bool, looks in prop::collection::vec(look(), 0..60)) {
            let mut habit = Habit::new(several);
            let mut before: Option<Wish> = None;
            for seen in &looks {
                let served = seen.iter().filter(|seat| seat.work > 0);
                let work: u32 = served.clone().map(|seat| seat.work).sum();
                let sole = |caller| served.clone().all(|seat| seat.caller == caller && seat.run >= seat.work);
                let fits = |whom| match whom {
                    One(caller) => sole(caller),
                    Whom::Several => {
                        several && served.clone().all(|seat| seat.run > 0) && (work < SPARSE || !(sole(A) || sole(B)))
                    }
                };
                let wish = habit.look(seen);
                match (before, wish) {
                    (Some(Wish::Follow(old)), Wish::Follow(new)) => {
                        prop_assert_eq!(old, new);
                        prop_assert!(fits(new));
                    }
                    (Some(Wish::Watch), Wish::Follow(new)) => prop_assert!(fits(new) && work >= DENSE),
                    (Some(Wish::Follow(old)), Wish::Doubt(who)) => {
                        prop_assert_eq!(old, who);
                        prop_assert!(fits(who) && work < SPARSE);
                    }
                    (Some(Wish::Follow(_)), Wish::Pause(pause)) => {
                        prop_assert!((FIRST_PAUSE..=LONGEST_PAUSE).contains(&pause));
                    }
                    (Some(Wish::Watch), Wish::Later(FIRST_PAUSE)) => prop_assert!(fits(Whom::Several)),
                    (_, Wish::Follow(_) | Wish::Doubt(_) | Wish::Pause(_) | Wish::Later(_)) => prop_assert!(false, "{before:?} {wish:?}"),
                    (_, Wish::Watch | Wish::Rest) => {}
                }
                before = Some(wish);
            }
        }
    }
}
