//! Tests of callbacks: each runs once, with its outcome and its buffer, on the thread that finds
//! the completion.

use std::{
    sync::{Arc, atomic::Ordering, mpsc},
    thread,
    time::Duration,
};

use rdmabox::{RemoteAddr, RequestError, Session, Until};

use crate::support::{LEN, REFUSED, at, base, on_each_provider, outside, pattern, split};

#[test]
fn callbacks_run_once_each_with_their_outcome_and_buffer() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        for i in 0..300usize {
            let send = send.clone();
            let len = 1 + i * 37 % 9000;
            session.write_then(at(base, i * 10_000), pattern(len, i), move |outcome| {
                let buf = outcome.unwrap();
                send.send((i, buf)).unwrap();
            });
        }
        drop(send);
        let mut seen = vec![0; 300];
        let (send, second) = mpsc::channel();
        for (i, buf) in receive.iter() {
            seen[i] += 1;
            assert!(buf == pattern(1 + i * 37 % 9000, i));
            let send = send.clone();
            let len = buf.len();
            session.read_then(at(base, i * 10_000), vec![0; len], move |outcome| {
                let buf = outcome.unwrap();
                send.send((i, buf)).unwrap();
            });
        }
        drop(send);
        for (i, buf) in second.iter() {
            seen[i] += 1;
            assert!(buf == pattern(1 + i * 37 % 9000, i));
        }
        assert_eq!(seen, [2; 300]);
        assert_eq!(session.stats().callbacks, 600);
    });
}

#[test]
fn a_callback_hears_of_a_refusal() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        let second = send.clone();
        session.write_then(outside(base), vec![1; 8], move |outcome| send.send(split(outcome)).unwrap());
        assert_eq!(receive.recv().unwrap(), (Err(REFUSED), vec![1; 8]));
        session.read_then(outside(base), vec![2; 8], move |outcome| second.send(split(outcome)).unwrap());
        let (result, buf) = receive.recv().unwrap();
        assert_eq!((result, buf.len()), (Err(REFUSED), 8));
        assert_eq!(receive.recv(), Err(mpsc::RecvError), "once each");
        assert_eq!(f.memory.load_u64(LEN - 8), 0);
    });
}

/// Catches a serving thread that waits for another thread to serve its own requests.
#[test]
fn a_serving_thread_runs_the_callbacks() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let me = thread::current().id();
        let (send, receive) = mpsc::channel();
        for round in 0..100usize {
            let until = if round % 2 == 0 { Until::AllDone } else { Until::AnyDone };
            session.serve(until, || {
                for i in 0..8 {
                    let send = send.clone();
                    session.read_then(at(base, i * 4096), vec![1; 4096], move |outcome| {
                        let (result, buf) = split(outcome);
                        send.send((round, i, result, buf, thread::current().id())).unwrap();
                    });
                }
            });
        }
        drop(send);
        let mut all: Vec<_> = receive.iter().collect();
        all.sort_by_key(|(round, i, ..)| (*round, *i));
        assert_eq!(all.len(), 800);
        let mut here = 0;
        for (n, (round, i, result, buf, thread)) in all.into_iter().enumerate() {
            assert_eq!((round, i, result, buf), (n / 8, n % 8, Ok(()), vec![0; 4096]));
            here += usize::from(thread == me);
        }
        // A peer that is kept from running for long is left to the pollers.
        assert!(here > 0);
    });
}

/// Requests started in a callback are served too, and each callback runs once.
#[test]
fn threads_that_serve_at_once_serve_everything_once() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        thread::scope(|scope| {
            for caller in 0..4usize {
                let (send, session) = (send.clone(), &session);
                scope.spawn(move || {
                    for i in 0..100 {
                        let until = if caller % 2 == 0 { Until::AllDone } else { Until::AnyDone };
                        session.serve(until, || {
                            let (again, send) = (Arc::clone(session), send.clone());
                            session.read_then(at(base, 64 * caller), vec![1; 64], move |outcome| {
                                assert_eq!(outcome, Ok(vec![0; 64]));
                                again.serve(until, || {
                                    again.read_then(at(base, 0), vec![1; 8], move |outcome| {
                                        send.send((caller, i, split(outcome).0)).unwrap();
                                    });
                                });
                            });
                        });
                    }
                });
            }
        });
        drop(send);
        let mut all: Vec<_> = receive.iter().collect();
        all.sort_by_key(|(caller, i, _)| (*caller, *i));
        let expected: Vec<_> = (0..400).map(|n| (n / 100, n % 100, Ok(()))).collect();
        assert_eq!(all, expected);
    });
}

/// Writes `left` more blocks, each when the one before it is done.
fn chain(session: &Arc<Session>, base: RemoteAddr, left: usize, buf: Vec<u8>, done: mpsc::Sender<Vec<u8>>) {
    let own = Arc::clone(session);
    let at_once = at(base, left * 8);
    session.write_then(at_once, buf, move |outcome| {
        let mut buf = outcome.unwrap();
        if left == 0 {
            return done.send(buf).unwrap();
        }
        buf.copy_from_slice(&(left as u64 - 1).to_ne_bytes());
        chain(&own, base, left - 1, buf, done);
    });
}

#[test]
fn a_callback_can_start_the_next_request() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        chain(&session, base, 1000, 1000u64.to_ne_bytes().into(), send);
        assert_eq!(receive.recv().unwrap(), 0u64.to_ne_bytes());
        for i in 0..=1000 {
            assert_eq!(f.memory.load_u64(i * 8), i as u64);
        }
        assert_eq!(session.stats().callbacks, 1001);
    });
}

#[test]
fn a_blocking_call_in_a_callback_is_refused() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        let own = Arc::clone(&session);
        session.write_then(base, vec![1; 8], move |outcome| {
            outcome.unwrap();
            let results = vec![
                own.write(base, &[2; 8]),
                own.read(base, &mut [0; 8]),
                own.write_vectored(&[]),
                own.read_vectored(&mut []),
                own.execute(&mut []),
                own.fetch_add(base, 1).map(|_| ()),
                own.compare_swap(base, 0, 1).map(|_| ()),
                own.call(b"where", &mut Vec::new()),
            ];
            send.send(results).unwrap();
        });
        let results = receive.recv().unwrap();
        assert!(results.iter().all(|r| matches!(r, Err(RequestError::Invalid(_)))), "{results:?}");
        assert_eq!(f.memory.load_u64(0), u64::from_ne_bytes([1; 8]));
        // Here it is not in a callback.
        session.write(base, &[3; 8]).unwrap();
        session.call(b"ab", &mut Vec::new()).unwrap();
    });
}

#[test]
fn a_transfer_is_not_waited_for_in_a_callback_and_can_be_kept() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        // Many, of which some complete together: nothing else would finish those.
        for i in 0..100usize {
            let (own, send) = (Arc::clone(&session), send.clone());
            session.write_then(at(base, i * 8), vec![1; 8], move |outcome| {
                outcome.unwrap();
                let mut next = own.start_write(at(base, (100 + i) * 8), vec![2; 8]);
                let done = next.is_done();
                match next.wait_timeout(Duration::from_secs(3600)) {
                    None => {
                        assert!(!done);
                        send.send(Some(next)).unwrap();
                    }
                    // It may have ended since, by a thread that polls.
                    Some(outcome) => {
                        assert_eq!(outcome, Ok(vec![2; 8]));
                        send.send(None).unwrap();
                    }
                }
            });
        }
        drop(send);
        let kept: Vec<_> = receive.iter().collect();
        assert_eq!(kept.len(), 100);
        for transfer in kept.into_iter().flatten() {
            assert_eq!(transfer.wait(), Ok(vec![2; 8]));
        }
        assert!((100..200).all(|i| f.memory.load_u64(i * 8) == u64::from_ne_bytes([2; 8])));
        assert_eq!((session.in_flight().0, session.stats().lane_failures), (0, 0));
    });
}

#[test]
fn a_wait_in_a_callback_fails_without_the_buffer_and_the_transfer_goes_on() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        let own = Arc::clone(&session);
        session.write_then(base, vec![1; 8], move |_| {
            let next = own.start_write(base, vec![2; 8]);
            let done = next.is_done();
            send.send((done, next.wait())).unwrap();
        });
        match receive.recv().unwrap() {
            // It may have ended before the wait.
            (_, Ok(buf)) => assert_eq!(buf, [2; 8]),
            (done, Err(failed)) => {
                assert!(!done);
                assert!(matches!(&failed.error, RequestError::Invalid(_)), "{failed:?}");
                assert_eq!(failed.to_string(), failed.error.to_string());
                assert_eq!(failed.buffer, None);
                assert!(matches!(RequestError::from(failed), RequestError::Invalid(_)));
            }
        }
        while f.memory.load_u64(0) != u64::from_ne_bytes([2; 8]) {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_panic_in_a_callback_affects_no_other_request() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        for i in 0..60usize {
            let send = send.clone();
            session.write_then(at(base, i * 1000), pattern(1000, i), move |outcome| {
                send.send((i, split(outcome).0)).unwrap();
                // Without the report that a panic prints.
                if i.is_multiple_of(3) {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
            });
            if i == 30 {
                session.write(at(base, 1 << 20), &[1; 8]).unwrap();
            }
        }
        drop(send);
        let mut seen: Vec<_> = receive.iter().collect();
        seen.sort_by_key(|(i, _)| *i);
        assert_eq!(seen, (0..60).map(|i| (i, Ok(()))).collect::<Vec<_>>());
        session.write(base, &[1; 8]).unwrap();
        assert_eq!(session.start_write(base, vec![2; 8]).wait(), Ok(vec![2; 8]));
        assert_eq!(session.in_flight().0, 0);
    });
}

#[test]
fn a_handle_of_the_session_can_go_in_a_callback() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        let own = Arc::clone(&session);
        session.write_then(base, vec![1; 8], move |outcome| {
            // The last one, unless it runs before the other goes.
            drop(own);
            send.send(split(outcome).0).unwrap();
        });
        drop(session);
        assert!(matches!(receive.recv(), Ok(Ok(()) | Err(RequestError::Disconnected))));
        while f.service.ended.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    });
}
