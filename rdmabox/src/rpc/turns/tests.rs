use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use proptest::prelude::*;

use super::*;

#[test]
fn short_calls_one_at_a_time_wake_the_deputy_once_and_nobody_else() {
    let mut roster = Roster::default();
    assert!(roster.take() && !roster.take() && roster.enter() && !roster.enter());
    for _ in 1..QUIET {
        assert_eq!(roster.look(), Look::Again);
    }
    assert_eq!(roster.look(), Look::Sleep);
    assert!(roster.lay_down(false));
    for _ in 0..1000 {
        assert!(roster.take());
        assert!(!roster.lay_down(false));
    }
}

#[test]
fn the_deputy_takes_over_when_a_call_lasts_from_one_look_to_the_next() {
    let mut roster = Roster::default();
    assert!(roster.take() && roster.enter());
    assert!(!roster.lay_down(false));
    assert_eq!(roster.look(), Look::Again);
    assert_eq!(roster.look(), Look::Take);
    // Whoever comes back is the next deputy.
    assert!(!roster.take() && roster.enter());
}

#[test]
fn a_turn_that_is_handed_on_is_the_deputys() {
    let mut roster = Roster::default();
    // Nobody is there to get it.
    assert!(roster.take() && !roster.lay_down(true) && roster.take() && roster.enter());
    assert!(roster.lay_down(true));
    assert!(!roster.take());
    assert_eq!(roster.look(), Look::Take);
    assert!(!roster.take() && roster.enter());
}

#[test]
fn one_long_call_is_no_reason_to_hand_on_and_several_are_until_they_are_forgotten() {
    let mut pace = Pace::default();
    let hour = Duration::from_secs(3600);
    pace.took(hour);
    assert!(!pace.is_long());
    pace.took(hour);
    assert!(pace.is_long());
    let forgotten = (0..100).position(|_| {
        pace.took(Duration::from_micros(5));
        !pace.is_long()
    });
    assert_eq!(forgotten, Some(5));
    pace.in_a_row = true;
    assert!(pace.is_long());
    (0..100).for_each(|_| pace.took(LONG_IN_A_ROW));
    assert!(!pace.is_long());
}

/// What threads do, as far as the roster sees it.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// One that carries out a call is done with it.
    Return,
    /// The one that has the turn finds a call.
    Find { hand_on: bool },
    /// The deputy's time is over, or it was woken.
    Look,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![Just(Act::Return), any::<bool>().prop_map(|hand_on| Act::Find { hand_on }), Just(Act::Look)]
}

proptest! {
    #[test]
    fn one_thread_has_the_turn_and_while_it_lies_there_somebody_looks(
        threads in 1..5u32,
        acts in prop::collection::vec(act(), 0..300),
    ) {
        let mut roster = Roster::default();
        // All begin as one that is done with a call.
        let (mut calling, mut polling, mut deputy, mut others) = (threads, 0, 0, 0);
        // One of the others is woken, and does what a thread does that is done with a call.
        let arrive = |roster: &mut Roster, polling: &mut u32, deputy: &mut u32, others: &mut u32| {
            if roster.take() { *polling += 1 } else if roster.enter() { *deputy += 1 } else { *others += 1 }
        };
        for act in acts {
            match act {
                Act::Return if calling > 0 => {
                    calling -= 1;
                    arrive(&mut roster, &mut polling, &mut deputy, &mut others);
                }
                Act::Find { hand_on } if polling > 0 => {
                    polling -= 1;
                    calling += 1;
                    let slept = roster.asleep;
                    let woken = roster.lay_down(hand_on);
                    prop_assert_eq!(woken, slept || hand_on && deputy > 0);
                }
                Act::Look if deputy > 0 => {
                    let look = roster.look();
                    prop_assert!(look != Look::Sleep || polling == 1);
                    if look == Look::Take {
                        (deputy, polling) = (deputy - 1, polling + 1);
                        if others > 0 {
                            others -= 1;
                            arrive(&mut roster, &mut polling, &mut deputy, &mut others);
                        }
                    }
                }
                _ => {}
            }
            prop_assert!(polling <= 1 && deputy <= 1);
            prop_assert_eq!((roster.taken, roster.deputy), (polling == 1, deputy == 1));
            // Nobody waits who is not relieved.
            prop_assert!(others == 0 || deputy == 1);
            // Whoever waits while the turn lies there is on the clock.
            prop_assert!(polling == 1 || deputy == 0 || !roster.asleep);
        }
    }
}

#[test]
fn threads_share_the_turn_and_all_of_them_end() {
    let turns = Arc::<Turns>::default();
    let inside = Arc::<AtomicUsize>::default();
    let (send, found) = mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (turns, inside, send) = (Arc::clone(&turns), Arc::clone(&inside), send.clone());
            std::thread::spawn(move || {
                let mut round = 0;
                // Calls that are handed on as a rule.
                while turns.take(Some(Duration::from_millis(u64::from(round % 3 == 0)))) {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    round += 1;
                    let _ = send.send(());
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    turns.lay_down(round % 2 == 0);
                }
            })
        })
        .collect();
    assert_eq!(found.iter().take(10_000).count(), 10_000);
    turns.end();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_call_that_does_not_end_holds_up_nobody() {
    let turns = Arc::<Turns>::default();
    assert!(turns.take(None));
    turns.lay_down(false);
    let (send, receive) = mpsc::channel();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (turns, send) = (Arc::clone(&turns), send.clone());
            std::thread::spawn(move || {
                if turns.take(None) {
                    turns.lay_down(false);
                    send.send(()).unwrap();
                    // Nor does this one, until the others have had their turn.
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
