use proptest::prelude::*;

use super::{PinTarget::One, *};
use crate::fuse::affinity::overlap::Samples;

const A: u32 = 11;
const B: u32 = 12;

fn from(caller: u32, work: u32) -> ThreadWork {
    ThreadWork { work, caller, run: work, samples: Samples::default() }
}

/// Returns `from(A, work)` with `taken` samples, of which `overlapping` overlap.
fn sampled(work: u32, taken: u32, overlapping: u32) -> ThreadWork {
    ThreadWork { samples: Samples { taken, overlapping }, ..from(A, work) }
}

/// Returns a state that is pinned to A, after work of 100 per tick.
fn pinned() -> PinPolicy {
    let mut policy = PinPolicy::new(false);
    assert_eq!(policy.on_tick(&[from(A, 60), from(A, 40)]), PinDecision::Observe);
    assert_eq!(policy.on_tick(&[from(A, 100), from(B, 0)]), PinDecision::Pin(One(A)));
    policy
}

/// Passes `ticks` ticks with dense work of A.
fn pass_ticks(policy: &mut PinPolicy, ticks: u32) {
    for _ in 0..ticks {
        assert_eq!(policy.on_tick(&[from(A, 100)]), PinDecision::Pin(One(A)));
        assert_eq!(policy.on_wake(&[from(A, 1)]), PinDecision::Pin(One(A)));
    }
}

#[test]
fn a_caller_with_dense_work_keeps_its_pin() {
    let mut policy = pinned();
    pass_ticks(&mut policy, FIRST_TRIAL_INTERVAL / 2);
    assert_eq!(policy.on_tick(&[from(A, SPARSE - 1)]), PinDecision::Pin(One(A)));
    assert_eq!(policy.on_tick(&[from(A, SPARSE)]), PinDecision::Pin(One(A)));
    assert_eq!(policy.on_tick(&[]), PinDecision::Pin(One(A)));
    assert_eq!(policy.on_tick(&[]), PinDecision::CheckStarvation(One(A)));
    assert_eq!(policy.on_tick(&[]), PinDecision::Sleep);
}

/// Passes a trial with work of `without` per tick. Returns the decision after it.
fn try_without(policy: &mut PinPolicy, without: u32) -> PinDecision {
    assert_eq!(policy.on_tick(&[from(A, 100)]), PinDecision::Observe);
    for _ in 0..TRIAL_SETTLING {
        assert_eq!(policy.on_wake(&[from(A, 1)]), PinDecision::Observe);
        assert_eq!(policy.on_tick(&[from(A, 1)]), PinDecision::Observe, "not judged");
    }
    assert_eq!(policy.on_tick(&[from(A, without)]), PinDecision::Observe);
    assert_eq!(policy.on_tick(&[from(A, without)]), PinDecision::Pin(One(A)));
    pass_ticks(policy, SETTLING + CONSECUTIVE - 1);
    policy.on_tick(&[from(A, 100)])
}

#[test]
fn the_interval_between_trials_doubles() {
    let mut policy = pinned();
    pass_ticks(&mut policy, FIRST_TRIAL_INTERVAL - 1);
    let mut trial = FIRST_TRIAL_INTERVAL;
    while trial < MAX_TRIAL_INTERVAL {
        trial *= 2;
        assert_eq!(try_without(&mut policy, 100), PinDecision::Pin(One(A)));
        pass_ticks(&mut policy, trial - SETTLING - CONSECUTIVE - 1);
    }
    assert_eq!(try_without(&mut policy, 90), PinDecision::Pin(One(A)));
    pass_ticks(&mut policy, MAX_TRIAL_INTERVAL - SETTLING - CONSECUTIVE - 1);
    assert_eq!(try_without(&mut policy, 140), PinDecision::BackOff(FIRST_PAUSE));
    // After a failure the first interval counts again.
    policy.on_tick(&[from(A, 100)]);
    pass_ticks(&mut policy, FIRST_TRIAL_INTERVAL);
    assert_eq!(try_without(&mut policy, 100), PinDecision::Pin(One(A)));
}

#[test]
fn another_caller_ends_the_pin_at_once() {
    let kernel_work = ThreadWork { run: 0, ..from(A, 50) };
    for observed in [[from(A, 50), from(B, 1)], [from(A, 50), kernel_work], [from(B, 0), from(B, 90)]] {
        assert_eq!(pinned().on_tick(&observed), PinDecision::Sleep);
        let mut policy = pinned();
        assert_eq!(policy.on_wake(&observed), PinDecision::Sleep);
        assert_eq!(policy.on_wake(&[from(A, 1)]), PinDecision::Observe);
    }
}

#[test]
fn threads_are_not_pinned_for_overlapping_requests() {
    let mut policy = PinPolicy::new(false);
    for (taken, overlapping) in [(1, 1), (7, 4), (8, 4)] {
        assert_eq!(
            policy.on_tick(&[sampled(50, taken, overlapping), from(A, 50)]),
            PinDecision::Overlap(FIRST_PAUSE)
        );
        // The caller is no candidate for the next tick either.
        assert_eq!(policy.on_tick(&[from(A, 100)]), PinDecision::Observe);
    }
    // Fewer than half overlap: the overlapping requests are of another thread, or the kernel's own.
    for expected in [PinDecision::Pin(One(A)); 2] {
        assert_eq!(policy.on_tick(&[sampled(50, 4, 3), sampled(50, 3, 0)]), expected);
    }
    // The pin lasts until more requests overlap.
    assert_eq!(policy.on_wake(&[sampled(50, 4, 4)]), PinDecision::Pin(One(A)), "a tick decides");
    assert_eq!(policy.on_tick(&[sampled(SPARSE - 1, 1, 1)]), PinDecision::Pin(One(A)), "too little work");
    assert_eq!(policy.on_tick(&[sampled(100, 14, 14)]), PinDecision::Overlap(FIRST_PAUSE));
    assert_eq!(policy.on_tick(&[from(A, 100)]), PinDecision::Observe);
    assert_eq!(policy.on_tick(&[from(A, 100)]), PinDecision::Pin(One(A)));
}

#[test]
fn sparse_work_is_not_pinned() {
    let mut policy = PinPolicy::new(false);
    for _ in 0..10 {
        assert_eq!(policy.on_tick(&[from(A, DENSE / 2), from(A, DENSE / 2 - 1)]), PinDecision::Sleep);
    }
    assert_eq!(policy.on_tick(&[from(A, DENSE)]), PinDecision::Observe);
    assert_eq!(policy.on_tick(&[from(B, DENSE)]), PinDecision::Observe, "another caller starts over");
    assert_eq!(policy.on_tick(&[from(B, DENSE)]), PinDecision::Pin(One(B)));
}

#[test]
fn less_work_than_before_is_a_failure() {
    for (each, last) in [(74, PinDecision::BackOff(FIRST_PAUSE)), (75, PinDecision::Pin(One(A)))] {
        // 200 in two ticks before. Then ticks that are not judged, and two that are.
        let mut policy = pinned();
        for _ in 0..SETTLING {
            assert_eq!(policy.on_tick(&[from(A, SPARSE)]), PinDecision::Pin(One(A)));
        }
        assert_eq!(policy.on_tick(&[from(A, each)]), PinDecision::Pin(One(A)));
        assert_eq!(policy.on_tick(&[from(A, each)]), last);
    }
}

#[test]
fn consecutive_failures_double_the_pause() {
    let mut policy = pinned();
    let mut pause = FIRST_PAUSE;
    while pause < MAX_PAUSE {
        assert_eq!(policy.report_harm(One(A)), PinDecision::BackOff(pause));
        pause *= 2;
    }
    assert_eq!(policy.report_harm(One(A)), PinDecision::BackOff(MAX_PAUSE));
    assert_eq!(policy.report_harm(One(A)), PinDecision::BackOff(MAX_PAUSE));
    policy.on_tick(&[from(A, 100)]);
    for _ in 0..2 * CALM_TICKS {
        policy.on_tick(&[from(A, 100)]);
    }
    assert_eq!(policy.report_harm(One(A)), PinDecision::BackOff(FIRST_PAUSE));
}

/// Returns a state that is pinned for several callers, after work of 100 per tick.
fn pinned_for_several() -> PinPolicy {
    let mut policy = PinPolicy::new(true);
    assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Observe);
    assert_eq!(
        policy.on_tick(&[from(A, 60), ThreadWork { run: 3, ..from(B, 40) }]),
        PinDecision::Pin(PinTarget::Several)
    );
    policy
}

const SEVERAL: [ThreadWork; 2] = {
    let samples = Samples { taken: 7, overlapping: 7 };
    [
        ThreadWork { work: 50, caller: A, run: 50, samples },
        ThreadWork { work: 50, caller: B, run: 50, samples },
    ]
};

#[test]
fn threads_are_pinned_for_several_callers_if_allowed() {
    let mut policy = PinPolicy::new(false);
    (0..10).for_each(|_| assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Sleep));
    let mut policy = pinned_for_several();
    for _ in 0..SETTLING_OF_SEVERAL + CONSECUTIVE {
        assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Pin(PinTarget::Several));
        for observed in [&[from(A, 1)][..], &SEVERAL, &[]] {
            assert_eq!(policy.on_wake(observed), PinDecision::Pin(PinTarget::Several));
        }
    }
    // One caller goes on alone.
    assert_eq!(policy.on_tick(&[from(B, 100)]), PinDecision::Sleep);
    assert_eq!(policy.on_tick(&[from(B, 100)]), PinDecision::Observe);
    assert_eq!(policy.on_tick(&[from(B, 100)]), PinDecision::Pin(One(B)));
    // Requests of the kernel itself have no caller.
    let kernel_work = ThreadWork { run: 0, ..from(A, 50) };
    assert_eq!(pinned_for_several().on_tick(&[from(A, 50), kernel_work]), PinDecision::Sleep);
    assert_eq!(pinned_for_several().on_wake(&[from(A, 50), kernel_work]), PinDecision::Sleep);
    assert_eq!(pinned_for_several().on_tick(&[]), PinDecision::Pin(PinTarget::Several));
    // Too little work shows no caller.
    let mut policy = pinned_for_several();
    assert_eq!(policy.on_tick(&[from(A, 1)]), PinDecision::Pin(PinTarget::Several));
    assert_eq!(policy.on_tick(&[from(B, SPARSE - 1)]), PinDecision::CheckStarvation(PinTarget::Several));
}

/// Passes the first comparison for several callers, with work of `each` per tick. Returns the
/// decision.
fn after_several(policy: &mut PinPolicy, each: u32) -> PinDecision {
    let observed = [from(A, each / 2), from(B, each - each / 2)];
    for _ in 0..SETTLING_OF_SEVERAL + CONSECUTIVE - 1 {
        assert_eq!(policy.on_tick(&observed), PinDecision::Pin(PinTarget::Several));
    }
    policy.on_tick(&observed)
}

#[test]
fn a_pin_for_several_callers_must_keep_throughput() {
    assert_eq!(after_several(&mut pinned_for_several(), 100), PinDecision::Pin(PinTarget::Several));
    assert_eq!(after_several(&mut pinned_for_several(), 99), PinDecision::BackOff(FIRST_PAUSE));
    // Later a quarter less is enough.
    for (each, last) in [(75, PinDecision::Pin(PinTarget::Several)), (74, PinDecision::BackOff(FIRST_PAUSE))]
    {
        let mut policy = pinned_for_several();
        after_several(&mut policy, 200);
        let observed = [from(A, each), from(B, 1)];
        for _ in 1..CONSECUTIVE {
            assert_eq!(policy.on_tick(&observed), PinDecision::Pin(PinTarget::Several));
        }
        assert_eq!(policy.on_tick(&[from(A, each - CONSECUTIVE), from(B, 1)]), last);
    }
}

/// A single caller does not wait for the pause of several callers. The longest pause depends on
/// the loss of the attempt.
#[test]
fn pauses_for_several_callers_double() {
    let mild = [1, 2, 4, 4, 4].map(|times| (80, times * FIRST_PAUSE));
    assert_eq!(mild[4].1, MAX_PAUSE_OF_SEVERAL);
    let severe = [1, 2, 4, 8, 16, 32, 64, 64].map(|times| (50, times * FIRST_PAUSE));
    assert_eq!(severe[7].1, MAX_PAUSE_AFTER_LOSS);
    let mut policy = pinned_for_several();
    for (each, pause) in mild.into_iter().chain([(50, MAX_PAUSE_OF_SEVERAL)]) {
        check_pause(&mut policy, each, pause);
    }
    let mut policy = pinned_for_several();
    for (each, pause) in severe.into_iter().chain([(80, MAX_PAUSE_OF_SEVERAL)]) {
        check_pause(&mut policy, each, pause);
    }
}

/// Checks that several callers with work of `each` per tick cause `pause` ticks without a pin.
fn check_pause(policy: &mut PinPolicy, each: u32, pause: u32) {
    assert_eq!(after_several(policy, each), PinDecision::BackOff(FIRST_PAUSE));
    let alone = [from(A, 100)];
    assert_eq!(policy.on_tick(&alone), PinDecision::Observe);
    assert_eq!(policy.on_tick(&alone), PinDecision::Pin(One(A)));
    assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Sleep);
    for _ in 1..pause / FIRST_PAUSE {
        assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Observe);
        assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Defer(FIRST_PAUSE));
    }
    assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Observe);
    assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Pin(PinTarget::Several));
}

/// Several callers come and go, so trials are more frequent than for one caller.
#[test]
fn trials_with_several_callers_go_on() {
    let mut policy = pinned_for_several();
    for trial in [
        FIRST_TRIAL_INTERVAL,
        2 * FIRST_TRIAL_INTERVAL,
        MAX_TRIAL_INTERVAL_OF_SEVERAL,
        MAX_TRIAL_INTERVAL_OF_SEVERAL,
    ] {
        for _ in 1..trial {
            assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Pin(PinTarget::Several));
        }
        for _ in 0..1 + TRIAL_SETTLING + 1 {
            assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Observe);
        }
        assert_eq!(policy.on_tick(&SEVERAL), PinDecision::Pin(PinTarget::Several));
    }
}

/// Generates work of a pinned caller mostly, and at times any work.
fn tick() -> impl Strategy<Value = Vec<ThreadWork>> {
    let work = prop_oneof![Just(0), 0..SPARSE, 0..3 * DENSE];
    let samples = (0..8_u32, 0..4_u32).prop_map(|(taken, overlapping)| Samples { taken, overlapping });
    let thread = (work, A..=B, 0..4 * DENSE, samples);
    let thread = thread.prop_map(|(work, caller, run, samples)| ThreadWork { work, caller, run, samples });
    prop_oneof![
        4 => (0..2 * DENSE).prop_map(|work| vec![from(A, DENSE), from(A, work)]),
        1 => (0..SPARSE).prop_map(|work| vec![from(A, work)]),
        1 => prop::collection::vec(thread, 0..4),
    ]
}

proptest! {
    /// The target has been the only caller, from the tick before the pin until now. Or there are
    /// several callers, if that is allowed.
    #[test]
    fn only_the_target_makes_requests(several: bool, ticks in prop::collection::vec(tick(), 0..60)) {
        let mut policy = PinPolicy::new(several);
        let mut before: Option<PinDecision> = None;
        for observed in &ticks {
            let served = observed.iter().filter(|thread| thread.work > 0);
            let work: u32 = served.clone().map(|thread| thread.work).sum();
            let sole = |caller| served.clone().all(|thread| thread.caller == caller && thread.run >= thread.work);
            let fits = |target| match target {
                One(caller) => sole(caller),
                PinTarget::Several => {
                    several && served.clone().all(|thread| thread.run > 0) && (work < SPARSE || !(sole(A) || sole(B)))
                }
            };
            let decision = policy.on_tick(observed);
            match (before, decision) {
                (Some(PinDecision::Pin(old)), PinDecision::Pin(new)) => {
                    prop_assert_eq!(old, new);
                    prop_assert!(fits(new));
                    prop_assert!(new == PinTarget::Several || work < SPARSE || !overlaps(observed));
                }
                (Some(PinDecision::Observe), PinDecision::Pin(new)) => {
                    prop_assert!(fits(new) && work >= DENSE && (new == PinTarget::Several || !overlaps(observed)));
                }
                (Some(PinDecision::Pin(old)), PinDecision::CheckStarvation(checked)) => {
                    prop_assert_eq!(old, checked);
                    prop_assert!(fits(checked) && work < SPARSE);
                }
                (Some(PinDecision::Pin(_)), PinDecision::BackOff(pause)) => {
                    prop_assert!((FIRST_PAUSE..=MAX_PAUSE).contains(&pause));
                }
                (Some(PinDecision::Observe), PinDecision::Defer(FIRST_PAUSE)) => prop_assert!(fits(PinTarget::Several)),
                (before, PinDecision::Overlap(FIRST_PAUSE)) => {
                    prop_assert!(overlaps(observed) && work >= SPARSE && (sole(A) || sole(B)));
                    prop_assert_ne!(before, Some(PinDecision::Pin(PinTarget::Several)));
                }
                (_, PinDecision::Pin(_) | PinDecision::CheckStarvation(_) | PinDecision::BackOff(_) | PinDecision::Defer(_) | PinDecision::Overlap(_)) => prop_assert!(false, "{before:?} {decision:?}"),
                (_, PinDecision::Observe | PinDecision::Sleep) => {}
            }
            before = Some(decision);
        }
    }
}
