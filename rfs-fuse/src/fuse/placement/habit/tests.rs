use proptest::prelude::*;

use super::{Whom::One, *};

const A: u32 = 11;
const B: u32 = 12;

fn from(caller: u32, work: u32) -> Seen {
    Seen { work, caller, run: work, samples: Samples::default() }
}

/// Returns `from(A, work)` with `taken` samples, of which `overlapping` overlap.
fn sampled(work: u32, taken: u32, overlapping: u32) -> Seen {
    Seen { samples: Samples { taken, overlapping }, ..from(A, work) }
}

/// Returns a state that is pinned to A, after work of 100 per tick.
fn following() -> Habit {
    let mut habit = Habit::new(false);
    assert_eq!(habit.look(&[from(A, 60), from(A, 40)]), Wish::Watch);
    assert_eq!(habit.look(&[from(A, 100), from(B, 0)]), Wish::Follow(One(A)));
    habit
}

/// Passes `ticks` ticks with dense work of A.
fn goes_on(habit: &mut Habit, ticks: u32) {
    for _ in 0..ticks {
        assert_eq!(habit.look(&[from(A, 100)]), Wish::Follow(One(A)));
        assert_eq!(habit.glance(&[from(A, 1)]), Wish::Follow(One(A)));
    }
}

#[test]
fn a_caller_with_dense_work_keeps_its_pin() {
    let mut habit = following();
    goes_on(&mut habit, FIRST_TRIAL / 2);
    assert_eq!(habit.look(&[from(A, SPARSE - 1)]), Wish::Follow(One(A)));
    assert_eq!(habit.look(&[from(A, SPARSE)]), Wish::Follow(One(A)));
    assert_eq!(habit.look(&[]), Wish::Follow(One(A)));
    assert_eq!(habit.look(&[]), Wish::Doubt(One(A)));
    assert_eq!(habit.look(&[]), Wish::Rest);
}

/// Passes a trial with work of `without` per tick. Returns the decision after it.
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
fn the_interval_between_trials_doubles() {
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
    // After a failure the first interval counts again.
    habit.look(&[from(A, 100)]);
    goes_on(&mut habit, FIRST_TRIAL);
    assert_eq!(try_without(&mut habit, 100), Wish::Follow(One(A)));
}

#[test]
fn another_caller_ends_the_pin_at_once() {
    let nobodys = Seen { run: 0, ..from(A, 50) };
    for seen in [[from(A, 50), from(B, 1)], [from(A, 50), nobodys], [from(B, 0), from(B, 90)]] {
        assert_eq!(following().look(&seen), Wish::Rest);
        let mut habit = following();
        assert_eq!(habit.glance(&seen), Wish::Rest);
        assert_eq!(habit.glance(&[from(A, 1)]), Wish::Watch);
    }
}

#[test]
fn threads_are_not_pinned_for_overlapping_requests() {
    let mut habit = Habit::new(false);
    for (taken, overlapping) in [(1, 1), (7, 4), (8, 4)] {
        assert_eq!(habit.look(&[sampled(50, taken, overlapping), from(A, 50)]), Wish::Overlap(FIRST_PAUSE));
        // The caller is no candidate for the next tick either.
        assert_eq!(habit.look(&[from(A, 100)]), Wish::Watch);
    }
    // Fewer than half overlap: the overlapping requests are of another thread, or the kernel's own.
    for followed in [Wish::Follow(One(A)); 2] {
        assert_eq!(habit.look(&[sampled(50, 4, 3), sampled(50, 3, 0)]), followed);
    }
    // The pin lasts until more requests overlap.
    assert_eq!(habit.glance(&[sampled(50, 4, 4)]), Wish::Follow(One(A)), "a tick decides");
    assert_eq!(habit.look(&[sampled(SPARSE - 1, 1, 1)]), Wish::Follow(One(A)), "this tells nothing");
    assert_eq!(habit.look(&[sampled(100, 14, 14)]), Wish::Overlap(FIRST_PAUSE));
    assert_eq!(habit.look(&[from(A, 100)]), Wish::Watch);
    assert_eq!(habit.look(&[from(A, 100)]), Wish::Follow(One(A)));
}

#[test]
fn sparse_work_is_not_pinned() {
    let mut habit = Habit::new(false);
    for _ in 0..10 {
        assert_eq!(habit.look(&[from(A, DENSE / 2), from(A, DENSE / 2 - 1)]), Wish::Rest);
    }
    assert_eq!(habit.look(&[from(A, DENSE)]), Wish::Watch);
    assert_eq!(habit.look(&[from(B, DENSE)]), Wish::Watch, "another one begins anew");
    assert_eq!(habit.look(&[from(B, DENSE)]), Wish::Follow(One(B)));
}

#[test]
fn less_work_than_before_is_a_failure() {
    for (each, last) in [(74, Wish::Pause(FIRST_PAUSE)), (75, Wish::Follow(One(A)))] {
        // 200 in two ticks before. Then ticks that are not judged, and two that are.
        let mut habit = following();
        for _ in 0..SETTLING {
            assert_eq!(habit.look(&[from(A, SPARSE)]), Wish::Follow(One(A)));
        }
        assert_eq!(habit.look(&[from(A, each)]), Wish::Follow(One(A)));
        assert_eq!(habit.look(&[from(A, each)]), last);
    }
}

#[test]
fn consecutive_failures_double_the_pause() {
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

/// Returns a state that is pinned for several callers, after work of 100 per tick.
fn following_several() -> Habit {
    let mut habit = Habit::new(true);
    assert_eq!(habit.look(&SEVERAL), Wish::Watch);
    assert_eq!(habit.look(&[from(A, 60), Seen { run: 3, ..from(B, 40) }]), Wish::Follow(Whom::Several));
    habit
}

const SEVERAL: [Seen; 2] = {
    let samples = Samples { taken: 7, overlapping: 7 };
    [Seen { work: 50, caller: A, run: 50, samples }, Seen { work: 50, caller: B, run: 50, samples }]
};

#[test]
fn threads_are_pinned_for_several_callers_if_allowed() {
    let mut habit = Habit::new(false);
    (0..10).for_each(|_| assert_eq!(habit.look(&SEVERAL), Wish::Rest));
    let mut habit = following_several();
    for _ in 0..SETTLING_OF_SEVERAL + IN_A_ROW {
        assert_eq!(habit.look(&SEVERAL), Wish::Follow(Whom::Several));
        for seen in [&[from(A, 1)][..], &SEVERAL, &[]] {
            assert_eq!(habit.glance(seen), Wish::Follow(Whom::Several));
        }
    }
    // One caller goes on alone.
    assert_eq!(habit.look(&[from(B, 100)]), Wish::Rest);
    assert_eq!(habit.look(&[from(B, 100)]), Wish::Watch);
    assert_eq!(habit.look(&[from(B, 100)]), Wish::Follow(One(B)));
    // Requests of the kernel itself have no caller.
    let nobodys = Seen { run: 0, ..from(A, 50) };
    assert_eq!(following_several().look(&[from(A, 50), nobodys]), Wish::Rest);
    assert_eq!(following_several().glance(&[from(A, 50), nobodys]), Wish::Rest);
    assert_eq!(following_several().look(&[]), Wish::Follow(Whom::Several));
    // Too little work shows no caller.
    let mut habit = following_several();
    assert_eq!(habit.look(&[from(A, 1)]), Wish::Follow(Whom::Several));
    assert_eq!(habit.look(&[from(B, SPARSE - 1)]), Wish::Doubt(Whom::Several));
}

/// Passes the first comparison for several callers, with work of `each` per tick. Returns the
/// decision.
fn after_several(habit: &mut Habit, each: u32) -> Wish {
    let seen = [from(A, each / 2), from(B, each - each / 2)];
    for _ in 0..SETTLING_OF_SEVERAL + IN_A_ROW - 1 {
        assert_eq!(habit.look(&seen), Wish::Follow(Whom::Several));
    }
    habit.look(&seen)
}

#[test]
fn a_pin_for_several_callers_must_keep_throughput() {
    assert_eq!(after_several(&mut following_several(), 100), Wish::Follow(Whom::Several));
    assert_eq!(after_several(&mut following_several(), 99), Wish::Pause(FIRST_PAUSE));
    // Later a quarter less is enough.
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

/// A single caller does not wait for the pause of several callers. The longest pause depends on the
/// loss of the attempt.
#[test]
fn pauses_for_several_callers_double() {
    let mild = [1, 2, 4, 4, 4].map(|times| (80, times * FIRST_PAUSE));
    assert_eq!(mild[4].1, LONGEST_PAUSE_OF_SEVERAL);
    let severe = [1, 2, 4, 8, 16, 32, 64, 64].map(|times| (50, times * FIRST_PAUSE));
    assert_eq!(severe[7].1, LONGEST_PAUSE_OF_MANY);
    let mut habit = following_several();
    for (each, pause) in mild.into_iter().chain([(50, LONGEST_PAUSE_OF_SEVERAL)]) {
        left_alone(&mut habit, each, pause);
    }
    let mut habit = following_several();
    for (each, pause) in severe.into_iter().chain([(80, LONGEST_PAUSE_OF_SEVERAL)]) {
        left_alone(&mut habit, each, pause);
    }
}

/// Checks that several callers with work of `each` per tick cause `pause` ticks without a pin.
fn left_alone(habit: &mut Habit, each: u32, pause: u32) {
    assert_eq!(after_several(habit, each), Wish::Pause(FIRST_PAUSE));
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

/// Several callers come and go, so trials are more frequent than for one caller.
#[test]
fn trials_with_several_callers_go_on() {
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

/// Generates work of a pinned caller mostly, and at times any work.
fn look() -> impl Strategy<Value = Vec<Seen>> {
    let work = prop_oneof![Just(0), 0..SPARSE, 0..3 * DENSE];
    let samples = (0..8_u32, 0..4_u32).prop_map(|(taken, overlapping)| Samples { taken, overlapping });
    let seat = (work, A..=B, 0..4 * DENSE, samples);
    let seat = seat.prop_map(|(work, caller, run, samples)| Seen { work, caller, run, samples });
    prop_oneof![
        4 => (0..2 * DENSE).prop_map(|work| vec![from(A, DENSE), from(A, work)]),
        1 => (0..SPARSE).prop_map(|work| vec![from(A, work)]),
        1 => prop::collection::vec(seat, 0..4),
    ]
}

proptest! {
    /// The target has been the only caller, from the tick before the pin until now. Or there are
    /// several callers, if that is allowed.
    #[test]
    fn only_the_target_makes_requests(several: bool, looks in prop::collection::vec(look(), 0..60)) {
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
                    prop_assert!(new == Whom::Several || work < SPARSE || !overlaps(seen));
                }
                (Some(Wish::Watch), Wish::Follow(new)) => {
                    prop_assert!(fits(new) && work >= DENSE && (new == Whom::Several || !overlaps(seen)));
                }
                (Some(Wish::Follow(old)), Wish::Doubt(who)) => {
                    prop_assert_eq!(old, who);
                    prop_assert!(fits(who) && work < SPARSE);
                }
                (Some(Wish::Follow(_)), Wish::Pause(pause)) => {
                    prop_assert!((FIRST_PAUSE..=LONGEST_PAUSE).contains(&pause));
                }
                (Some(Wish::Watch), Wish::Later(FIRST_PAUSE)) => prop_assert!(fits(Whom::Several)),
                (before, Wish::Overlap(FIRST_PAUSE)) => {
                    prop_assert!(overlaps(seen) && work >= SPARSE && (sole(A) || sole(B)));
                    prop_assert_ne!(before, Some(Wish::Follow(Whom::Several)));
                }
                (_, Wish::Follow(_) | Wish::Doubt(_) | Wish::Pause(_) | Wish::Later(_) | Wish::Overlap(_)) => prop_assert!(false, "{before:?} {wish:?}"),
                (_, Wish::Watch | Wish::Rest) => {}
            }
            before = Some(wish);
        }
    }
}
