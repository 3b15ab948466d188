//! Tests of repetitions on queue pairs that complete requests when a test says so.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{super::tests::Slow, counts_from};
use crate::{
    error::RequestError,
    memory::Lent,
    runtime::{Started, WaitedBy},
    verbs::{RemoteAddr, WcStatus},
};

/// Length of each part in bytes.
const PART: u64 = 256;
const REFUSED: RequestError = RequestError::Completion(WcStatus::RemAccessErr);

/// Starts a request for one part at `addr`.
fn start(slow: &Slow, write: bool, addr: u64) -> Started<Vec<u8>> {
    let runtime = &slow.runtime;
    let (ticket, count) = runtime.take_idle(1, runtime.timeout());
    let mut lent = Lent::new(vec![7; PART as usize], count);
    let remote = RemoteAddr { addr, rkey: 1 };
    let loans: Vec<_> = if write { lent.lend(1 << 20).collect() } else { lent.lend_mut(1 << 20).collect() };
    runtime.begin(write, 1, loans.into_iter().map(|loan| (remote, loan)), &ticket, WaitedBy::Caller);
    Started::new(Arc::clone(runtime), ticket, lent)
}

/// Starts adjacent requests, which merge. Only the first one is posted by itself.
fn start_merged(slow: &Slow, write: bool, count: u64) -> Vec<Started<Vec<u8>>> {
    let started = slow.runtime.together(|| (0..count).map(|i| start(slow, write, i * PART)).collect());
    assert_eq!(slow.posted_to(), [0]);
    started
}

fn outcomes(started: Vec<Started<Vec<u8>>>) -> Vec<Result<(), RequestError>> {
    assert!(started.iter().all(Started::is_done));
    started.into_iter().map(|started| started.finish().0).collect()
}

/// Asserts that nothing is posted, in the window or in flight.
fn assert_idle(slow: &Slow) {
    assert_eq!((slow.posted_to(), slow.runtime.in_flight().0), (vec![], 0));
    assert!(slow.runtime.lanes.iter().all(|lane| lane.is_idle()));
    assert_eq!(slow.runtime.writes.lock().len(), 0);
}

/// Catches parts that are posted behind each other: the refusal of one would flush the next.
#[test]
fn one_part_is_under_way_at_a_time() {
    for write in [true, false] {
        let slow = Slow::with_lanes(2);
        let started = start_merged(&slow, write, 3);
        slow.complete(WcStatus::RemAccessErr);
        assert_eq!(slow.posted_to(), [0]);
        slow.complete(WcStatus::Success);
        assert_eq!(slow.posted_to(), [PART]);
        // Both lanes are down, so the last part waits.
        slow.complete(WcStatus::RemAccessErr);
        assert_eq!(slow.posted_to(), [0; 0]);
        slow.replace_one();
        slow.replace_one();
        slow.await_posted(&[2 * PART]);
        slow.complete(WcStatus::Success);
        assert_eq!(outcomes(started), [Ok(()), Err(REFUSED), Ok(())]);
        assert_idle(&slow);
        let stats = slow.runtime.stats.snapshot();
        assert_eq!((stats.repeated, stats.merged, stats.work_requests, stats.errors), (3, 2, 4, 1));
        slow.runtime.fail();
    }
}

/// Catches a repetition of requests whose fate is unknown.
#[test]
fn only_a_refused_request_is_repeated() {
    for status in [WcStatus::RetryExcErr, WcStatus::GeneralErr] {
        let slow = Slow::with_lanes(2);
        let started = start_merged(&slow, true, 2);
        slow.complete(status);
        assert_eq!(outcomes(started), vec![Err(RequestError::Completion(status)); 2]);
        slow.replace_one();
        assert_idle(&slow);
        slow.runtime.fail();
    }
    // The merged one is behind a refused one.
    let slow = Slow::with_lanes(1);
    let alone = start(&slow, true, 1 << 30);
    let merged = slow.runtime.together(|| vec![start(&slow, true, 0), start(&slow, true, PART)]);
    assert_eq!(slow.posted_to(), [1 << 30, 0]);
    slow.complete(WcStatus::RemAccessErr);
    assert_eq!(outcomes(vec![alone]), [Err(REFUSED)]);
    assert_eq!(outcomes(merged), vec![Err(RequestError::Flushed); 2]);
    slow.runtime.fail();
}

/// Catches a write that overtakes an earlier one to the same bytes, which is repeated behind it.
#[test]
fn a_later_overlapping_write_waits_for_the_part() {
    let slow = Slow::with_lanes(2);
    let mut started = start_merged(&slow, true, 2);
    slow.complete(WcStatus::RemAccessErr);
    // Other requests pass.
    let other = start(&slow, true, 1 << 30);
    slow.await_posted(&[0, 1 << 30]);
    let read = start(&slow, false, 0);
    slow.await_posted(&[0, 1 << 30, 0]);
    let later = start(&slow, true, PART + 8);
    for posted in [vec![1 << 30, 0, PART], vec![0, PART], vec![PART], vec![]] {
        slow.complete(WcStatus::Success);
        slow.await_posted(&posted);
    }
    // The first attempt may be on its way until its queue pair is replaced.
    slow.replace_one();
    slow.await_posted(&[PART + 8]);
    slow.complete(WcStatus::Success);
    started.extend([later, other, read]);
    assert_eq!(outcomes(started), vec![Ok(()); 5]);
    assert_idle(&slow);
    slow.runtime.fail();
}

/// Catches a part that is not found in the queue, and a range that stays in flight for ever.
#[test]
fn a_waiting_part_can_be_withdrawn() {
    let slow = Slow::with_lanes(2);
    let mut started = start_merged(&slow, true, 3);
    slow.complete(WcStatus::RemAccessErr);
    let last = started.pop().unwrap();
    slow.runtime.withdraw(last.ticket());
    assert_eq!(outcomes(vec![last]), [Err(RequestError::Timeout(slow.runtime.timeout()))]);
    slow.complete(WcStatus::Success);
    assert_eq!(slow.posted_to(), [PART]);
    slow.complete(WcStatus::Success);
    assert_eq!(outcomes(started), vec![Ok(()); 2]);
    slow.replace_one();
    assert_idle(&slow);
    slow.runtime.fail();
}

/// Catches a timeout that begins anew with the repetition, and one that has passed before it.
#[test]
fn the_timeout_counts_from_the_first_post_but_half_of_it_is_left() {
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    for (waited, counted) in [(0, 0), (3, 3), (5, 5), (6, 5), (100, 5)] {
        assert_eq!(counts_from(now - waited * second, now, 10 * second), now - counted * second);
    }
    assert_eq!(counts_from(now - second, now, Duration::MAX), now - second);
}

/// Catches a part that is left behind when the session ends.
#[test]
fn waiting_parts_end_with_the_session() {
    let slow = Slow::with_lanes(2);
    let started = start_merged(&slow, true, 3);
    slow.complete(WcStatus::RemAccessErr);
    slow.runtime.fail();
    assert_eq!(outcomes(started), vec![Err(RequestError::Disconnected); 3]);
}
