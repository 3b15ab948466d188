//! Loom models of the combiner.

use std::sync::Arc;

use super::*;
use crate::sync::model::{check, go};

/// A request: the number of its caller, and its number there.
type Request = (u8, u8);

/// Requests handled by combiners, in order.
#[derive(Debug, Default)]
struct Done {
    backlog: Vec<Request>,
    done: Vec<Request>,
}

type Queue = MergeQueue<Request, Done>;

/// Takes all requests, including those that arrive during the post.
fn combine_all(guard: &mut CombinerGuard<'_, Request, Done>) {
    loop {
        guard.collect(|state| &mut state.backlog);
        let state = guard.state();
        if state.backlog.is_empty() {
            return;
        }
        state.done.append(&mut state.backlog);
    }
}

/// Takes one request at a time and unlocks during each post, like a combiner whose posts execute.
fn combine_unlocked(guard: &mut CombinerGuard<'_, Request, Done>) {
    loop {
        guard.collect(|state| &mut state.backlog);
        let state = guard.state();
        if state.backlog.is_empty() {
            return;
        }
        let first = state.backlog.remove(0);
        state.done.push(first);
        guard.unlocked(|| {});
    }
}

/// Asserts that each request was taken once, in its caller's order.
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

fn callers_push(counts: &'static [u8], combine: fn(&mut CombinerGuard<'_, Request, Done>)) {
    let queue = Arc::new(Queue::default());
    let call = |queue: Arc<Queue>, caller: u8| {
        move || {
            for number in 0..counts[usize::from(caller)] {
                queue.push(std::iter::once((caller, number)));
                queue.flush(combine);
            }
        }
    };
    let others: Vec<_> = (1..counts.len()).map(|caller| go(call(Arc::clone(&queue), caller as u8))).collect();
    call(Arc::clone(&queue), 0)();
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_done(&queue, counts);
}

/// A caller that finds a combiner leaves, and its request is still posted. Catches a combiner
/// that does not check again after its unlock, or checks too early.
#[test]
fn a_request_left_to_the_combiner_is_taken() {
    check(None, || callers_push(&[1, 1], combine_all));
    check(Some(3), || callers_push(&[2, 2], combine_all));
    check(Some(2), || callers_push(&[1, 1, 1], combine_all));
}

/// The same with other combiners during a post. Catches a combiner that holds requests across the
/// unlock.
#[test]
fn requests_are_taken_once_and_in_order_while_others_combine() {
    check(Some(3), || callers_push(&[2, 1], combine_unlocked));
    check(Some(2), || callers_push(&[1, 1, 1], combine_unlocked));
}

/// A request without room is posted when room is returned. Catches a combiner that does not check
/// for room again after it sets `stalled`, and a returning thread that reads `stalled` too early.
#[test]
fn returned_room_wakes_a_stalled_combiner() {
    check(None, || {
        let queue = Arc::new(Queue::default());
        let room = Arc::new(AtomicU64::new(0));
        let combine = |room: Arc<AtomicU64>| {
            move |guard: &mut CombinerGuard<'_, Request, Done>| {
                guard.collect(|state| &mut state.backlog);
                // With the ordering of the admission window's load.
                let has_room = || room.load(Ordering::Relaxed) > 0;
                if has_room() || guard.begin_stall() && has_room() {
                    let state = guard.state();
                    state.done.append(&mut state.backlog);
                    guard.end_stall();
                }
            }
        };
        let other = go({
            let (queue, room) = (Arc::clone(&queue), Arc::clone(&room));
            move || {
                room.fetch_add(1, Ordering::AcqRel);
                if queue.is_stalled() {
                    queue.flush(combine(room));
                }
            }
        });
        queue.push(std::iter::once((0, 0)));
        queue.flush(combine(room));
        other.join().unwrap();
        assert_done(&queue, &[1]);
    });
}

/// A withdrawn request is not posted as well, and a caller that came meanwhile is served. Catches
/// a withdrawal without a flush.
#[test]
fn a_request_is_taken_or_withdrawn() {
    check(Some(3), || {
        let queue = Arc::new(Queue::default());
        let others: Vec<_> = (0..2)
            .map(|caller| {
                let queue = Arc::clone(&queue);
                go(move || {
                    queue.push(std::iter::once((caller, 0)));
                    queue.flush(combine_all);
                })
            })
            .collect();
        let withdrawn = queue.with(|guard| {
            guard.collect(|state| &mut state.backlog);
            let state = guard.state();
            let (own, rest) =
                std::mem::take(&mut state.backlog).into_iter().partition(|(whose, _)| *whose == 0);
            state.backlog = rest;
            let own: Vec<Request> = own;
            own
        });
        queue.flush(combine_all);
        others.into_iter().for_each(|other| other.join().unwrap());
        queue.combiner.lock().done.extend(&withdrawn);
        assert_done(&queue, &[1, 1]);
    });
}
