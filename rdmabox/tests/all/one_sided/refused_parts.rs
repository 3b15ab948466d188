//! Merged requests of which one is refused: each caller gets the outcome of its own part.

use rdmabox::{RemoteAddr, RequestError, Session, Transfer};

use crate::mechanisms::on_four_threads;
use crate::support::{LEN, REFUSED, at, base, on_each_that_posts, pattern, split, while_full};

const PART: usize = 4096;
const PARTS: usize = 4;

/// Starts a request for part `i` of the run at `place`.
fn start(session: &Session, place: RemoteAddr, i: usize, write: bool) -> Transfer<Vec<u8>> {
    let part = at(place, i * PART);
    match write {
        true => session.start_write(part, pattern(PART, i)),
        false => session.start_read(part, vec![0; PART]),
    }
}

/// Starts the parts of a run as one merged request. Returns their outcomes.
fn merged(session: &Session, place: RemoteAddr, write: bool) -> Vec<Result<(), RequestError>> {
    let before = session.stats();
    let started: Vec<_> = session.together(|| (0..PARTS).map(|i| start(session, place, i, write)).collect());
    let outcomes = started.into_iter().map(Transfer::wait).map(split).enumerate();
    let outcomes = outcomes.map(|(i, (outcome, buffer))| {
        assert!(outcome.is_err() || buffer == pattern(PART, i), "part {i}");
        outcome
    });
    let outcomes = outcomes.collect();
    let took = session.stats().since(&before);
    let counts = (took.merged, took.repeated, took.work_requests, took.errors);
    assert_eq!(counts, (PARTS as u64 - 1, PARTS as u64, PARTS as u64 + 1, 1));
    outcomes
}

/// The parts that are right take effect, and the session goes on.
#[test]
fn each_part_of_a_refused_request_has_its_own_outcome() {
    on_each_that_posts(|mut f| {
        for queue_pairs in [1, 4] {
            f.options.queue_pairs = queue_pairs;
            let session = f.connect();
            let base = base(&session);
            let good = LEN - (PARTS - 1) * PART;
            let past_the_end = at(base, good);
            for i in 0..PARTS - 1 {
                f.memory.write(good + i * PART, &vec![0; PART]);
            }
            let refused_last = [vec![Ok(()); PARTS - 1], vec![Err(REFUSED)]].concat();
            assert_eq!(merged(&session, past_the_end, true), refused_last);
            for i in 0..PARTS - 1 {
                let mut found = vec![0; PART];
                f.memory.read(good + i * PART, &mut found);
                assert!(found == pattern(PART, i), "part {i}");
            }
            assert_eq!(merged(&session, past_the_end, false), refused_last);
            // The first one is refused.
            let before_the_begin = RemoteAddr { addr: base.addr - PART as u64, ..base };
            let refused_first = [vec![Err(REFUSED)], vec![Ok(()); PARTS - 1]].concat();
            assert_eq!(merged(&session, before_the_begin, true), refused_first);
            session.write(base, &[1; 8]).unwrap();
            assert!(session.is_connected());
            assert_eq!(session.in_flight().0, 0);
        }
    });
}

/// The caller that asked for too much is another thread.
#[test]
fn the_request_of_another_thread_does_no_harm() {
    on_each_that_posts(|mut f| {
        (f.options.window_bytes, f.options.queue_pairs) = ((PARTS * PART) as u64, 1);
        let session = f.connect();
        let base = base(&session);
        let place = at(base, LEN - (PARTS - 1) * PART);
        for write in [true, false] {
            let (before, started) = while_full(&session, base, PARTS * PART, move |session| {
                on_four_threads(|i| start(session, place, i, write))
            });
            let outcomes: Vec<_> = started.into_iter().map(|part| split(part.wait()).0).collect();
            assert_eq!(outcomes, [Ok(()), Ok(()), Ok(()), Err(REFUSED)]);
            let took = session.stats().since(&before);
            assert_eq!((took.merged, took.repeated, took.errors), (3, 4, 1));
        }
    });
}

/// One request with several parts, and a callback.
#[test]
fn a_request_of_several_parts_has_the_error_of_the_refused_one() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        let (last, outside) = (at(base, LEN - PART), at(base, LEN));
        let data = pattern(PART, 1);
        assert_eq!(session.write_vectored(&[(last, &data), (outside, &data)]), Err(REFUSED));
        let mut found = vec![0; PART];
        f.memory.read(LEN - PART, &mut found);
        assert!(found == data);
        let (send, receive) = std::sync::mpsc::channel();
        session.together(|| {
            for (name, place) in [("last", last), ("outside", outside)] {
                let send = send.clone();
                session.read_then(place, vec![0; PART], move |outcome| {
                    send.send((name, split(outcome))).unwrap();
                });
            }
        });
        let mut outcomes: Vec<_> = receive.iter().take(2).collect();
        outcomes.sort_unstable_by_key(|(name, _)| *name);
        assert!(outcomes[0].1 == (Ok(()), data));
        assert_eq!(outcomes[1].1.0, Err(REFUSED));
    });
}
