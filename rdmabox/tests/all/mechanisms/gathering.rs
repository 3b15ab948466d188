//! Tests of started requests that leave together, without being started `together`.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use futures::{executor::block_on, future::join_all};
use rdmabox::{ProviderKind, RemoteAddr, Session, stats::StatsSnapshot};

use super::requests_doorbells_merged;
use crate::support::{Fixture, at, base, on_each_that_posts, pattern};

const PART: usize = 512;

/// Starts writes of parts that are adjacent, and waits for all of them.
fn start_and_wait(session: &Session, base: RemoteAddr, count: usize) -> StatsSnapshot {
    let before = session.stats();
    let started: Vec<_> =
        (0..count).map(|i| session.start_write(at(base, i * PART), pattern(PART, i))).collect();
    started.into_iter().for_each(|write| drop(write.wait().unwrap()));
    session.stats().since(&before)
}

fn maps(f: &Fixture) -> bool {
    f.address.provider() == ProviderKind::Shm
}

/// Returns when the host's memory holds the word. Touches no session.
fn until_memory_has(f: &Fixture, offset: usize, word: u64) {
    let began = Instant::now();
    while f.memory.load_u64(offset) != word {
        assert!(began.elapsed() < Duration::from_secs(30), "stranded");
        std::thread::yield_now();
    }
}

#[test]
fn requests_started_while_others_are_under_way_merge() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        let took = start_and_wait(&session, base, 16);
        if maps(&f) {
            assert_eq!(requests_doorbells_merged(&took), (16, 16, 0), "posting executes");
            assert_eq!(took.gathered, 0);
            return;
        }
        // The first one finds nothing under way. A tick may part the others.
        assert_eq!(took.gathered, 15);
        assert!(took.doorbells < 16 && took.merged > 0, "{took:?}");
        for i in 0..16 {
            let mut found = vec![0; PART];
            f.memory.read(i * PART, &mut found);
            assert!(found == pattern(PART, i), "{i}");
        }
    });
}

#[test]
fn a_request_with_nothing_under_way_is_posted_at_once() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        for _ in 0..50 {
            let took = start_and_wait(&session, base, 1);
            assert_eq!((requests_doorbells_merged(&took), took.gathered), ((1, 1, 0), 0));
        }
    });
}

#[test]
fn large_requests_are_posted_at_once() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        let before = session.stats();
        let start = |i: usize| session.start_write(at(base, i * 65_536), vec![1; 32_768]);
        let started: Vec<_> = (0..8).map(start).collect();
        assert_eq!(session.stats().since(&before).doorbells, 8);
        started.into_iter().for_each(|write| drop(write.wait().unwrap()));
        assert_eq!(session.stats().since(&before).gathered, 0);
    });
}

#[test]
fn a_request_is_not_stranded_if_its_thread_never_waits() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        for round in 1..=12u64 {
            let first = session.start_write(base, round.to_ne_bytes().to_vec());
            let second = session.start_write(at(base, 64), round.to_ne_bytes().to_vec());
            until_memory_has(&f, 64, round);
            for write in [first, second] {
                write.wait().unwrap();
            }
        }
        // Requests that were left for too long several times in a row are posted at once.
        assert_eq!(session.stats().gathered, if maps(&f) { 0 } else { 4 });
    });
}

#[test]
fn requests_that_callbacks_start_leave_as_one_list() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        let own = Arc::clone(&session);
        session.write_then(at(base, 1 << 20), vec![1; 8], move |result| {
            result.unwrap();
            let before = own.stats();
            let started: Vec<_> =
                (0..8).map(|i| own.start_write(at(base, i * PART), pattern(PART, i))).collect();
            assert_eq!(own.stats().since(&before).doorbells, 0);
            send.send((before, started)).unwrap();
        });
        let (before, started) = receive.recv().unwrap();
        started.into_iter().for_each(|write| drop(write.wait().unwrap()));
        assert_eq!(requests_doorbells_merged(&session.stats().since(&before)), (1, 1, 7));
    });
}

#[test]
fn awaited_requests_merge() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        let before = session.stats();
        let started = (0..16).map(|i| session.start_write(at(base, i * PART), pattern(PART, i)));
        let ended = block_on(join_all(started));
        ended.into_iter().for_each(|ended| drop(ended.unwrap()));
        let took = session.stats().since(&before);
        if !maps(&f) {
            assert_eq!(took.gathered, 15);
            assert!(took.doorbells < 16 && took.merged > 0, "{took:?}");
        }
    });
}

#[test]
fn threads_callbacks_and_tasks_together_lose_nothing() {
    on_each_that_posts(|f| {
        let session = f.connect();
        let base = base(&session);
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (session, place) = (&session, at(base, thread << 20));
                scope.spawn(move || {
                    let (send, receive) = mpsc::channel();
                    for round in 0..60usize {
                        let write =
                            |i: usize| session.start_write(at(place, i * PART), pattern(PART, round + i));
                        let started: Vec<_> = (0..5).map(write).collect();
                        let send = send.clone();
                        session.write_then(at(place, 5 * PART), pattern(PART, round + 5), move |result| {
                            send.send(result.map(drop).map_err(|failed| failed.error)).unwrap();
                        });
                        block_on(write(6)).unwrap();
                        assert_eq!(receive.recv(), Ok(Ok(())));
                        started.into_iter().for_each(|write| drop(write.wait().unwrap()));
                    }
                });
            }
        });
        for (thread, i) in (0..4).flat_map(|thread| (0..7).map(move |i| (thread, i))) {
            let mut found = vec![0; PART];
            f.memory.read((thread << 20) + i * PART, &mut found);
            assert!(found == pattern(PART, 59 + i), "{thread} {i}");
        }
        assert_eq!((session.stats().errors, session.in_flight().0), (0, 0));
    });
}

#[test]
fn left_requests_end_with_the_session() {
    on_each_that_posts(|f| {
        for _ in 0..20 {
            let session = f.connect();
            let base = base(&session);
            let started: Vec<_> =
                (0..4).map(|i| session.start_write(at(base, i * PART), vec![1; 8])).collect();
            session.close(Duration::from_secs(10));
            for write in started {
                let buffer = write.wait().map_or_else(|failed| failed.buffer, Some);
                assert_eq!(buffer, Some(vec![1; 8]));
            }
        }
    });
}
