//! Models of the combiner.

use std::sync::Arc;

use super::*;
use crate::sync::model::{check, go};

/// A request: whose, and its number there.
type Request = (u8, u8);

/// What combiners have done, in order.
#[derive(Debug, Default)]
struct Done {
    backlog: Vec<Request>,
    done: Vec<Request>,
}

type Queue = MergeQueue<Request, Done>;

/// Takes everything that is there, and more that comes while it is posted.
fn combine_all(turn: &mut Turn<'_, Request, Done>) {
    loop {
        turn.collect(|state| &mut state.backlog);
        let state = turn.state();
        if state.backlog.is_empty() {
            return;
        }
        state.done.append(&mut state.backlog);
    }
}

/// As a combiner whose posts execute: one request at a time, while others combine.
fn combine_unlocked(turn: &mut Turn<'_, Request, Done>) {
    loop {
        turn.collect(|state| &mut state.backlog);
        let state = turn.state();
        if state.backlog.is_empty() {
            return;
        }
        let first = state.backlog.remove(0);
        state.done.push(first);
        turn.unlocked(|| {});
    }
}

/// Everything was taken once, that of each caller in its order, and nothing is left.
fn assert_done(queue: &Queue, callers: &[u8]) {
    assert!(queue.arrived.lock().is_empty(), "stranded");
    let combiner = queue.combiner.lock();
    assert!(combiner.backlog.is_empty(), "stranded");
    assert_eq!(combiner.done.len(), callers.iter().map(|count| usize::from(*count)).sum::<usize>());
    for (caller, count) in (0..).zip(callers) {
        let own = combiner.done.iter().filter(|(whose, _)| *whose == caller);
        assert!(own.map(|(_, number)| *number).eq(0..*count), "{:?}", combiner.done);
    }
}

fn callers_push(counts: &'static [u8], combine: fn(&mut Turn<'_, Request, Done>)) {
    let queue = Arc::new(Queue::default());
    let call = |queue: Arc<Queue>, caller: u8| {
        move || {
            for number in 0..counts[usize::from(caller)] {
                queue.push(std::iter::once((caller, number)));
                queue.kick(combine);
            }
        }
    };
    let others: Vec<_> = (1..counts.len()).map(|caller| go(call(Arc::clone(&queue), caller as u8))).collect();
    call(Arc::clone(&queue), 0)();
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_done(&queue, counts);
}

/// A caller that finds a combiner at work leaves, and its request is posted all the same. Catches a combiner that does
/// not look again after its unlock, or may look too early.
#[test]
fn a_request_left_to_the_combiner_is_taken() {
    check(None, || callers_push(&[1, 1], combine_all));
    check(Some(3), || callers_push(&[2, 2], combine_all));
    check(Some(2), || callers_push(&[1, 1, 1], combine_all));
}

/// The same where others combine during a post. Catches a combiner that keeps requests in its hands over the unlock.
#[test]
fn requests_are_taken_once_and_in_order_while_others_combine() {
    check(Some(3), || callers_push(&[2, 1], combine_unlocked));
    check(Some(2), || callers_push(&[1, 1, 1], combine_unlocked));
}

/// A request that found no room goes when room is given back. Catches a combiner that looks for room before it says that
/// it has stalled, and one who gives back and asks too early.
#[test]
fn whoever_gives_room_back_sees_a_combiner_that_has_stalled() {
    check(None, || {
        let queue = Arc::new(Queue::default());
        let room = Arc::new(AtomicU64::new(0));
        let combine = |room: Arc<AtomicU64>| {
            move |turn: &mut Turn<'_, Request, Done>| {
                turn.collect(|state| &mut state.backlog);
                turn.set_stalled(true);
                // As the admission window is read.
                if room.load(Ordering::Relaxed) > 0 {
                    let state = turn.state();
                    state.done.append(&mut state.backlog);
                    turn.set_stalled(false);
                }
            }
        };
        let other = go({
            let (queue, room) = (Arc::clone(&queue), Arc::clone(&room));
            move || {
                room.fetch_add(1, Ordering::AcqRel);
                if queue.is_stalled() {
                    queue.kick(combine(room));
                }
            }
        });
        queue.push(std::iter::once((0, 0)));
        queue.kick(combine(room));
        other.join().unwrap();
        assert_done(&queue, &[1]);
    });
}

/// A request that is withdrawn is not taken as well, and a caller that came meanwhile is served. Catches a withdrawal that
/// is not followed by a look at what came.
#[test]
fn a_request_is_taken_or_withdrawn() {
    check(Some(3), || {
        let queue = Arc::new(Queue::default());
        let others: Vec<_> = (0..2)
            .map(|caller| {
                let queue = Arc::clone(&queue);
                go(move || {
                    queue.push(std::iter::once((caller, 0)));
                    queue.kick(combine_all);
                })
            })
            .collect();
        let withdrawn = queue.with(|turn| {
            turn.collect(|state| &mut state.backlog);
            let state = turn.state();
            let (own, rest) =
                std::mem::take(&mut state.backlog).into_iter().partition(|(whose, _)| *whose == 0);
            state.backlog = rest;
            let own: Vec<Request> = own;
            own
        });
        queue.kick(combine_all);
        others.into_iter().for_each(|other| other.join().unwrap());
        queue.combiner.lock().done.extend(&withdrawn);
        assert_done(&queue, &[1, 1]);
    });
}
