//! Tests of signaling, polling, and several queue pairs.

use std::sync::mpsc;

use rdmabox::{PollingMode, Session};

use super::{offsets, submit};
use crate::support::{at, base, on_each_that_posts, pattern, split};

#[test]
fn the_signal_interval_says_which_of_a_chain_report() {
    on_each_that_posts(|mut f| {
        f.options.queue_pairs = 1;
        for (interval, unsignaled) in [(0, 15), (1, 0), (2, 8), (4, 12), (5, 12), (16, 15), (100, 15)] {
            f.options.signal_interval = interval;
            let session = f.connect();
            let base = base(&session);
            for write in [true, false] {
                let took = submit(&session, write, &offsets(base, (0..16).map(|i| i * 4096)), 512);
                assert_eq!((took.work_requests, took.unsignaled), (16, unsignaled), "{interval}");
                assert_eq!(took.completions, 16 - unsignaled, "{interval}");
                assert_eq!(submit(&session, write, &[base], 512).unsignaled, 0);
            }
        }
    });
}

#[test]
fn every_polling_mode_serves_every_front_door() {
    let modes = PollingMode::ALL.iter().copied().chain([PollingMode::SharedCq(2), PollingMode::SharedCq(16)]);
    for polling in modes {
        on_each_that_posts(|mut f| {
            f.options.polling = polling;
            let session = f.connect();
            let base = base(&session);
            std::thread::scope(|scope| {
                for thread in 0..4usize {
                    let session = &session;
                    scope.spawn(move || {
                        let place = |i: usize| at(base, (thread << 20) + i * 5000);
                        let (send, receive) = mpsc::channel();
                        for round in 0..30usize {
                            session.write(place(0), &pattern(5000, round)).unwrap();
                            let started = session.start_write(place(1), pattern(5000, round + 1));
                            let send = send.clone();
                            session.write_then(place(2), pattern(5000, round + 2), move |outcome| {
                                send.send(split(outcome).0).unwrap();
                            });
                            assert!(session.fetch_add(at(base, 4_000_000), 1).is_ok());
                            assert_eq!(receive.recv(), Ok(Ok(())));
                            started.wait().unwrap();
                            for i in 0..3 {
                                let mut back = vec![0; 5000];
                                session.read(place(i), &mut back).unwrap();
                                assert!(back == pattern(5000, round + i), "{polling}");
                            }
                        }
                    });
                }
            });
            assert_eq!(f.memory.load_u64(4_000_000), 120);
            assert_eq!((session.stats().errors, session.in_flight().0), (0, 0));
        });
    }
}

#[test]
fn no_retries_are_events_and_endless_ones_are_busy_polling() {
    const OPS: u64 = 500;
    on_each_that_posts(|mut f| {
        f.options.polling = PollingMode::Adaptive;
        for (retries, busy) in [(0, false), (u32::MAX, true)] {
            f.options.max_retry = Some(retries);
            let session = f.connect();
            let base = base(&session);
            let before = session.stats();
            for _ in 0..OPS {
                session.read(base, &mut [0; 512]).unwrap();
            }
            let took = session.stats().since(&before);
            assert_eq!(took.completions, OPS);
            if busy {
                assert_eq!((took.sleeps, took.events), (0, 0));
            } else {
                // Poll, arm, poll, sleep: two empty polls for each sleep, one with a completion.
                assert!(took.empty_polls <= 2 * (took.sleeps + OPS), "{took:?}");
                assert!(took.sleeps <= 2 * OPS, "{took:?}");
                assert!(took.events <= took.sleeps);
            }
        }
    });
}

#[test]
fn an_idle_session_polls_nothing() {
    let modes = PollingMode::ALL.iter().copied().chain([PollingMode::SharedCq(2)]);
    for polling in modes {
        on_each_that_posts(|mut f| {
            f.options.polling = polling;
            let (idle, other) = (f.connect(), f.connect());
            let base = base(&idle);
            let (send, receive) = mpsc::channel();
            idle.write_then(base, vec![1; 8], move |outcome| send.send(split(outcome).0).unwrap());
            assert_eq!(receive.recv(), Ok(Ok(())));
            idle.write(base, &[1; 8]).unwrap();
            // The work of another session is this test's clock: a poller comes to rest meanwhile.
            let work = || (0..2000).for_each(|_| other.read(base, &mut [0; 8]).unwrap());
            let mut before = idle.stats().polls;
            loop {
                work();
                let now = idle.stats().polls;
                if now == before {
                    break;
                }
                before = now;
            }
            assert_eq!(idle.in_flight().0, 0);
        });
    }
}

#[test]
fn one_to_sixteen_queue_pairs() {
    on_each_that_posts(|mut f| {
        for queue_pairs in 1..=16 {
            f.options.queue_pairs = queue_pairs;
            let session = f.connect();
            let base = base(&session);
            std::thread::scope(|scope| {
                for thread in 0..3usize {
                    let session = &session;
                    scope.spawn(move || {
                        for round in 0..40 {
                            let data = pattern(3000, round + thread);
                            session.write(at(base, thread << 20), &data).unwrap();
                            let mut back = vec![0; 3000];
                            session.read(at(base, thread << 20), &mut back).unwrap();
                            assert!(back == data, "{queue_pairs}");
                        }
                    });
                }
            });
            assert_eq!(session.stats().errors, 0);
        }
        for queue_pairs in [0, 17] {
            f.options.queue_pairs = queue_pairs;
            assert!(Session::connect(&f.address, &f.options).is_err());
        }
    });
}
