use proptest::prelude::*;

use super::{PollingMode::*, Step::*, *};

/// Feeds the results of polls and wakes after every sleep.
fn steps(poller: &mut Poller, found: &[usize]) -> Vec<Step> {
    found
        .iter()
        .map(|&found| {
            let step = poller.after_poll(found);
            if step == Sleep {
                poller.after_wake();
            }
            step
        })
        .collect()
}

#[test]
fn busy_always_polls() {
    let mut poller = Poller::new(Busy, 0, 8);
    assert_eq!(poller.batch_size(), 8);
    assert!(steps(&mut poller, &[0; 10_000]).iter().all(|&step| step == Poll));
    assert_eq!(steps(&mut poller, &[8, 1, 0]), [Poll; 3]);
}

#[test]
fn a_shared_queue_is_polled_like_a_busy_queue() {
    let found = [0, 3, 0, 0, 0, 1, 0];
    let mut shared = Poller::new(SharedCq(3), 0, 8);
    assert_eq!(shared.batch_size(), 8);
    assert_eq!(steps(&mut shared, &found), [Poll; 7]);
}

#[test]
fn event_mode_takes_one_completion_at_a_time() {
    let mut poller = Poller::new(Event, 120, 8);
    assert_eq!(poller.batch_size(), 1);
    assert_eq!(steps(&mut poller, &[0, 0, 1, 1, 0, 1, 0]), [Arm, Sleep, Arm, Arm, Sleep, Arm, Sleep]);
}

#[test]
fn event_batch_mode_waits_for_an_event_after_each_batch() {
    let mut poller = Poller::new(EventBatch, 120, 8);
    assert_eq!(poller.batch_size(), 8);
    assert_eq!(steps(&mut poller, &[8, 8, 3, 0, 5, 0]), [Arm, Arm, Arm, Sleep, Arm, Sleep]);
}

#[test]
fn hybrid_mode_polls_until_a_poll_finds_nothing() {
    let mut poller = Poller::new(Hybrid, 120, 8);
    assert_eq!(steps(&mut poller, &[8, 1, 0, 0, 0, 2, 0]), [Poll, Poll, Arm, Sleep, Arm, Poll, Arm]);
}

#[test]
fn adaptive_mode_restarts_its_retries_at_each_completion() {
    let mut poller = Poller::new(Adaptive, 3, 8);
    let empty = steps(&mut poller, &[0, 0, 0, 0, 0]);
    assert_eq!(empty, [Poll, Poll, Poll, Arm, Sleep]);
    let late = steps(&mut poller, &[0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(late, [Poll, Poll, Poll, Poll, Poll, Poll, Poll, Arm]);
    // A completion between arming and sleeping restarts the retries.
    assert_eq!(steps(&mut poller, &[1, 0, 0, 0, 0, 0]), [Poll, Poll, Poll, Poll, Arm, Sleep]);
}

#[test]
fn adaptive_mode_retries_max_retry_times_before_it_sleeps() {
    let mut poller = Poller::new(Adaptive, super::super::DEFAULT_MAX_RETRY, 8);
    let idle = steps(&mut poller, &[0; 122]);
    assert_eq!(idle.iter().filter(|&&step| step == Poll).count(), 120);
    assert_eq!(idle[120..], [Arm, Sleep]);
}

#[test]
fn zero_retries_are_event_mode_and_endless_retries_are_busy_mode() {
    let found = [0, 0, 1, 1, 0, 0, 1, 0, 0, 0];
    let mut event = Poller::new(Event, 120, 8);
    let mut zero = Poller::new(Adaptive, 0, 8);
    assert_eq!(zero.batch_size(), event.batch_size());
    assert_eq!(steps(&mut zero, &found), steps(&mut event, &found));
    let mut huge = Poller::new(Adaptive, u32::MAX, 8);
    assert!(steps(&mut huge, &[0; 1_000_000]).iter().all(|&step| step == Poll));
    // An adaptive budget has the same extremes.
    let mut zero = Poller::new(Adaptive, Retry::Adapt { max: 0 }, 8);
    assert_eq!(steps(&mut zero, &found), steps(&mut Poller::new(Event, 120, 8), &found));
    let mut huge = Poller::new(Adaptive, Retry::Adapt { max: u32::MAX }, 8);
    assert!(steps(&mut huge, &[0; 1_000_000]).iter().all(|&step| step == Poll));
}

#[test]
fn an_adaptive_budget_learns_from_sleeps_and_completions() {
    let mut poller = Poller::new(Adaptive, Retry::Adapt { max: 8 }, 8);
    let polls_until_sleep = |poller: &mut Poller| {
        let polls = (1..).find(|_| poller.after_poll(0) == Sleep);
        poller.after_wake();
        polls
    };
    assert_eq!((polls_until_sleep(&mut poller), poller.budget()), (Some(10), 4));
    assert_eq!((polls_until_sleep(&mut poller), poller.budget()), (Some(6), 2));
    // The poll after the arming finds it: three retries would have been needed.
    assert_eq!(steps(&mut poller, &[0, 0, 0, 1]), [Poll, Poll, Arm, Poll]);
    assert_eq!(poller.budget(), 6);
    // An aborted wait does not change the budget.
    assert_eq!(steps(&mut poller, &[0, 0, 0]), [Poll; 3]);
    poller.after_wake();
    assert_eq!(poller.budget(), 6);
}

#[test]
fn a_new_wait_restarts_the_retries() {
    let mut poller = Poller::new(Adaptive, 2, 8);
    assert_eq!(steps(&mut poller, &[0, 0, 0]), [Poll, Poll, Arm]);
    poller.after_wake();
    assert_eq!(steps(&mut poller, &[0, 0, 0, 0]), [Poll, Poll, Arm, Sleep]);
}

#[test]
fn an_empty_batch_counts_as_one() {
    assert_eq!(Poller::new(Busy, 0, 0).batch_size(), 1);
}

/// A completion queue with edge-triggered events: completions before the arming cause no event.
#[derive(Default)]
struct Cq {
    queued: usize,
    armed: bool,
    event: bool,
}

impl Cq {
    fn arrive(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        self.queued += n;
        if std::mem::take(&mut self.armed) {
            self.event = true;
        }
    }

    fn poll(&mut self, batch: usize) -> usize {
        let found = batch.min(self.queued);
        self.queued -= found;
        found
    }
}

/// Result of a run.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Everything was polled.
    Drained { sleeps: usize },
    /// Slept forever with completions in the queue.
    Stranded(usize),
}

/// Runs the documented loop with arrivals before and after every action. Without
/// `polls_after_arm` the loop has the classic lost wakeup, to show that the simulation detects
/// it.
fn run(poller: &mut Poller, arrivals: &[usize], polls_after_arm: bool) -> End {
    let mut cq = Cq::default();
    let mut arrivals = arrivals.iter().copied();
    let total: usize = arrivals.clone().sum();
    let (mut taken, mut sleeps) = (0, 0);
    loop {
        cq.arrive(arrivals.next().unwrap_or(0));
        let found = cq.poll(poller.batch_size());
        taken += found;
        cq.arrive(arrivals.next().unwrap_or(0));
        let mut step = poller.after_poll(found);
        if step == Arm {
            cq.armed = true;
            cq.arrive(arrivals.next().unwrap_or(0));
            if !polls_after_arm {
                step = Sleep;
            }
        }
        if step == Sleep {
            sleeps += 1;
            while !cq.event {
                match arrivals.next() {
                    Some(n) => cq.arrive(n),
                    None if cq.queued > 0 => return End::Stranded(cq.queued),
                    None => {
                        assert_eq!(taken, total);
                        return End::Drained { sleeps };
                    }
                }
            }
            cq.event = false;
            poller.after_wake();
        }
        if taken == total && arrivals.len() == 0 && matches!(poller.mode, Busy | SharedCq(_)) {
            return End::Drained { sleeps };
        }
    }
}

#[test]
fn the_simulation_detects_a_missing_poll_after_arming() {
    let mut poller = Poller::new(Hybrid, 0, 4);
    assert_eq!(run(&mut poller, &[0, 1], false), End::Stranded(1));
    let mut poller = Poller::new(Hybrid, 0, 4);
    assert_eq!(run(&mut poller, &[0, 1], true), End::Drained { sleeps: 1 });
}

#[test]
fn retries_save_sleeps() {
    // A completion every 20 actions.
    let arrivals: Vec<usize> = (0..10_000).map(|i| usize::from(i % 20 == 0)).collect();
    let sleeps = |mode, retry| match run(&mut Poller::new(mode, retry, 16), &arrivals, true) {
        End::Drained { sleeps } => sleeps,
        stranded => panic!("{stranded:?}"),
    };
    assert_eq!(sleeps(Adaptive, 120), 1);
    assert_eq!(sleeps(Adaptive, u32::MAX), 0);
    assert_eq!(sleeps(Adaptive, 0), sleeps(Event, 120));
    assert!(sleeps(Hybrid, 120) > 100);
    assert!(sleeps(EventBatch, 120) > 100);
}

#[test]
fn an_adaptive_budget_spins_only_if_spinning_succeeds() {
    let run_with = |gap: usize| {
        let arrivals: Vec<usize> = (0..100_000).map(|i| usize::from(i % gap == 0)).collect();
        let mut poller = Poller::new(Adaptive, Retry::Adapt { max: 120 }, 16);
        let End::Drained { sleeps } = run(&mut poller, &arrivals, true) else { panic!("stranded") };
        (sleeps, poller.budget())
    };
    // With a gap of 20 actions the loop sleeps only at the end. With a gap of 1000 it sleeps each
    // time after a few polls.
    assert_eq!(run_with(20).0, 1);
    let (sleeps, budget) = run_with(1000);
    assert!(sleeps >= 100, "{sleeps} sleeps");
    assert_eq!(budget, 7);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_mode_strands_a_completion(
        arrivals in prop::collection::vec(prop_oneof![3 => Just(0usize), 2 => 1..4usize, 1 => 5..40usize], 0..60),
        batch in 1..20usize,
        max_retry in prop_oneof![Just(0u32), 1..10u32, Just(u32::MAX)],
        adapt: bool,
    ) {
        let retry = if adapt { Retry::Adapt { max: max_retry } } else { Retry::Fixed(max_retry) };
        for &mode in PollingMode::ALL {
            let end = run(&mut Poller::new(mode, retry, batch), &arrivals, true);
            prop_assert!(matches!(end, End::Drained { .. }), "{mode}: {end:?}");
        }
    }

    #[test]
    fn sleep_follows_only_an_arm_and_one_empty_poll(
        found in prop::collection::vec(0..4usize, 0..200),
        max_retry in 0..5u32,
        adapt: bool,
        mode in 0..PollingMode::ALL.len(),
    ) {
        let retry = if adapt { Retry::Adapt { max: max_retry } } else { Retry::Fixed(max_retry) };
        let mut poller = Poller::new(PollingMode::ALL[mode], retry, 16);
        let mut last = Poll;
        for found in found {
            let step = poller.after_poll(found);
            prop_assert_eq!(step == Sleep, last == Arm && found == 0);
            if step == Sleep {
                poller.after_wake();
            }
            last = step;
        }
    }
}
