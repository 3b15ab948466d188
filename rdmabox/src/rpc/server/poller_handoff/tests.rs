use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use proptest::prelude::*;

use super::*;

#[test]
fn short_sequential_calls_wake_only_the_standby_once() {
    let mut roles = PollerRoles::default();
    assert!(roles.acquire() && !roles.acquire() && roles.become_standby() && !roles.become_standby());
    for _ in 1..QUIET_CHECKS {
        assert_eq!(roles.check_standby(), StandbyAction::PollAgain);
    }
    assert_eq!(roles.check_standby(), StandbyAction::Sleep);
    assert!(roles.release_for_call(false));
    for _ in 0..1000 {
        assert!(roles.acquire());
        assert!(!roles.release_for_call(false));
    }
}

#[test]
fn the_standby_takes_over_when_a_call_spans_two_checks() {
    let mut roles = PollerRoles::default();
    assert!(roles.acquire() && roles.become_standby());
    assert!(!roles.release_for_call(false));
    assert_eq!(roles.check_standby(), StandbyAction::PollAgain);
    assert_eq!(roles.check_standby(), StandbyAction::TakeOver);
    // The next idle thread becomes the standby.
    assert!(!roles.acquire() && roles.become_standby());
}

#[test]
fn a_role_that_is_handed_off_goes_to_the_standby() {
    let mut roles = PollerRoles::default();
    // There is no standby to hand off to.
    assert!(roles.acquire() && !roles.release_for_call(true) && roles.acquire() && roles.become_standby());
    assert!(roles.release_for_call(true));
    assert!(!roles.acquire());
    assert_eq!(roles.check_standby(), StandbyAction::TakeOver);
    assert!(!roles.acquire() && roles.become_standby());
}

#[test]
fn several_long_calls_cause_a_handoff_until_they_are_forgotten() {
    let mut durations = CallDurations::default();
    let hour = Duration::from_secs(3600);
    durations.record(hour);
    assert!(!durations.is_long());
    durations.record(hour);
    assert!(durations.is_long());
    let forgotten = (0..100).position(|_| {
        durations.record(Duration::from_micros(5));
        !durations.is_long()
    });
    assert_eq!(forgotten, Some(5));
    durations.under_load = true;
    assert!(durations.is_long());
    (0..100).for_each(|_| durations.record(LONG_CALL_UNDER_LOAD));
    assert!(!durations.is_long());
}

/// The actions of threads that the roles see.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A thread has finished its call.
    Return,
    /// The poller finds a call.
    Find { hand_off: bool },
    /// The standby's interval has passed, or it was woken.
    CheckStandby,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        Just(Act::Return),
        any::<bool>().prop_map(|hand_off| Act::Find { hand_off }),
        Just(Act::CheckStandby)
    ]
}

proptest! {
    #[test]
    fn one_thread_polls_and_a_free_role_is_checked_by_the_standby(
        threads in 1..5u32,
        acts in prop::collection::vec(act(), 0..300),
    ) {
        let mut roles = PollerRoles::default();
        // Every thread starts like one that has finished a call.
        let (mut calling, mut polling, mut standby, mut others) = (threads, 0, 0, 0);
        // A waiting thread is woken, and acts like one that has finished a call.
        let arrive = |roles: &mut PollerRoles, polling: &mut u32, standby: &mut u32, others: &mut u32| {
            if roles.acquire() { *polling += 1 } else if roles.become_standby() { *standby += 1 } else { *others += 1 }
        };
        for act in acts {
            match act {
                Act::Return if calling > 0 => {
                    calling -= 1;
                    arrive(&mut roles, &mut polling, &mut standby, &mut others);
                }
                Act::Find { hand_off } if polling > 0 => {
                    polling -= 1;
                    calling += 1;
                    let slept = roles.asleep;
                    let woken = roles.release_for_call(hand_off);
                    prop_assert_eq!(woken, slept || hand_off && standby > 0);
                }
                Act::CheckStandby if standby > 0 => {
                    let look = roles.check_standby();
                    prop_assert!(look != StandbyAction::Sleep || polling == 1);
                    if look == StandbyAction::TakeOver {
                        (standby, polling) = (standby - 1, polling + 1);
                        if others > 0 {
                            others -= 1;
                            arrive(&mut roles, &mut polling, &mut standby, &mut others);
                        }
                    }
                }
                _ => {}
            }
            prop_assert!(polling <= 1 && standby <= 1);
            prop_assert_eq!((roles.taken, roles.standby), (polling == 1, standby == 1));
            // Threads wait only while there is a standby to relieve them.
            prop_assert!(others == 0 || standby == 1);
            // The standby sleeps only while another thread polls.
            prop_assert!(polling == 1 || standby == 0 || !roles.asleep);
        }
    }
}

#[test]
fn threads_share_the_poller_role_and_all_of_them_end() {
    let handoff = Arc::<PollerHandoff>::default();
    let inside = Arc::<AtomicUsize>::default();
    let (send, found) = mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (handoff, inside, send) = (Arc::clone(&handoff), Arc::clone(&inside), send.clone());
            std::thread::spawn(move || {
                let mut round = 0;
                // Every third call is long, so that the role is handed off.
                while handoff.acquire(Some(Duration::from_millis(u64::from(round % 3 == 0)))) {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    round += 1;
                    let _ = send.send(());
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    handoff.release_for_call(round % 2 == 0);
                }
            })
        })
        .collect();
    assert_eq!(found.iter().take(10_000).count(), 10_000);
    handoff.end();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_call_that_does_not_end_delays_no_other_call() {
    let handoff = Arc::<PollerHandoff>::default();
    assert!(handoff.acquire(None));
    handoff.release_for_call(false);
    let (send, receive) = mpsc::channel();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (handoff, send) = (Arc::clone(&handoff), send.clone());
            std::thread::spawn(move || {
                if handoff.acquire(None) {
                    handoff.release_for_call(false);
                    send.send(()).unwrap();
                    // This call does not end either, until the others have run.
                    std::thread::park();
                }
            })
        })
        .collect();
    drop(send);
    assert_eq!(receive.iter().take(3).count(), 3);
    threads.into_iter().for_each(|thread| {
        thread.thread().unpark();
        thread.join().unwrap();
    });
}
