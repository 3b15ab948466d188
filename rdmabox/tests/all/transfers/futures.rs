//! Tests of started requests as futures, on a foreign executor.

use std::{
    future::Future,
    panic::resume_unwind,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures::{executor::block_on, future::join_all};
use rdmabox::Transfer;

use crate::support::{Fixture, REFUSED, at, base, on_each_provider, outside, pattern, providers, split};

#[test]
fn futures_of_several_threads_are_woken() {
    for provider in providers() {
        for queue_pairs in [1, 4] {
            let mut f = Fixture::new(provider);
            f.options.queue_pairs = queue_pairs;
            // Less than the requests of one thread, so that some wait for others.
            f.options.window_bytes = 32 * 1024;
            let session = f.connect();
            let base = base(&session);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let session = &session;
                    scope.spawn(move || {
                        let start = thread << 20;
                        for round in 0..20 {
                            let seed = |i: usize| thread * 1000 + round * 20 + i;
                            let write =
                                |i| session.start_write(at(base, start + i * 9000), pattern(8000, seed(i)));
                            let read =
                                |i: usize| session.start_read(at(base, start + i * 9000), vec![0; 8000]);
                            for outcome in block_on(join_all((0..16).map(write))) {
                                outcome.unwrap();
                            }
                            let found = block_on(join_all((0..16).map(read)));
                            for (i, outcome) in found.into_iter().enumerate() {
                                assert!(outcome.unwrap() == pattern(8000, seed(i)));
                            }
                        }
                    });
                }
            });
            assert_eq!((session.stats().errors, session.in_flight().0), (0, 0));
        }
    }
}

#[test]
fn a_panicking_waker_affects_no_other_request() {
    struct Panics(AtomicUsize);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            // Without the report that a panic prints.
            resume_unwind(Box::new("on purpose"));
        }
    }
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let panics = Arc::new(Panics(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&panics));
        let mut started: Vec<_> =
            (0..100).map(|i| session.start_write(at(base, i * 1000), pattern(1000, i))).collect();
        let asked = started.len();
        started.retain_mut(|transfer| Pin::new(transfer).poll(&mut Context::from_waker(&waker)).is_pending());
        session.write(at(base, 1 << 20), &[1; 8]).unwrap();
        while !started.iter().all(Transfer::is_done) {
            std::thread::yield_now();
        }
        // Also by one that was done between taking the waker and saying so.
        assert!(panics.0.load(Ordering::SeqCst) <= asked);
        for transfer in started {
            transfer.wait().unwrap();
        }
        session.write(base, &[1; 8]).unwrap();
        assert_eq!(session.in_flight().0, 0);
    });
}

#[test]
fn a_future_can_move_to_another_task_and_to_a_thread() {
    struct Never;
    impl Wake for Never {
        fn wake(self: Arc<Self>) {}
    }
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        for i in 0..200 {
            let mut transfer = session.start_write(at(base, i * 5000), pattern(5000, i));
            // A task that is gone by the time it would be woken.
            let waker = Waker::from(Arc::new(Never));
            match Pin::new(&mut transfer).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => drop(outcome.unwrap()),
                Poll::Pending => {
                    let other = std::thread::spawn(move || match i % 2 {
                        0 => block_on(transfer),
                        _ => transfer.wait(),
                    });
                    assert!(other.join().unwrap() == Ok(pattern(5000, i)));
                }
            }
        }
    });
}

#[test]
fn a_refused_future_gives_the_status_and_the_buffer() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let outcome = block_on(session.start_write(outside(base), vec![1; 8]));
        let failed = outcome.unwrap_err();
        assert_eq!((failed.error, failed.buffer), (REFUSED, Some(vec![1; 8])));
        let (result, buf) = split(session.start_read(outside(base), vec![1; 8]).wait());
        assert_eq!((result, buf.len()), (Err(REFUSED), 8));
        assert_eq!(session.stats().errors, 2);
    });
}
