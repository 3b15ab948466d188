//! Waits inside [`Session::together`], which holds back the requests that are started in it.

use std::{sync::Arc, thread, time::Duration};

use futures::executor::block_on;
use rdmabox::{OwnedOp, RemoteAddr, Session, wait_all, wait_any};

use crate::support::{Fixture, at, base, on_each_that_posts};

const LONG: Duration = Duration::from_secs(60);

/// Two sessions with one host, and the address of its memory for each.
struct Two {
    one: Arc<Session>,
    two: Arc<Session>,
    bases: [RemoteAddr; 2],
}

fn on_each(test: impl Fn(&Fixture, Two)) {
    on_each_that_posts(|f| {
        let (one, two) = (f.connect(), f.connect());
        let bases = [base(&one), base(&two)];
        test(&f, Two { one, two, bases });
    });
}

#[test]
fn a_wait_posts_what_its_own_plug_holds() {
    on_each(|_, Two { one, bases, .. }| {
        let before = one.stats();
        one.together(|| {
            let write = one.start_write(bases[0], vec![1; 8]);
            let other = one.start_write(at(bases[0], 64), vec![1; 8]);
            assert_eq!(write.wait(), Ok(vec![1; 8]));
            // Posted with it, as one list.
            assert_eq!(other.wait(), Ok(vec![1; 8]));
        });
        assert_eq!(one.stats().since(&before).doorbells, 1);
    });
}

#[test]
fn requests_of_another_session_are_not_held_back() {
    on_each(|f, Two { one, two, bases }| {
        let before = one.stats();
        let held = one.together(|| {
            let held = one.start_write(bases[0], vec![1; 8]);
            assert_eq!(two.start_write(at(bases[1], 64), vec![2; 8]).wait(), Ok(vec![2; 8]));
            two.write(at(bases[1], 128), &[3; 8]).unwrap();
            assert_eq!(block_on(two.start_fetch_add(at(bases[1], 192), 4)), Ok(0));
            assert_eq!(one.stats().since(&before).doorbells, 0, "not posted yet");
            assert_eq!(f.memory.load_u64(0), 0);
            held
        });
        held.wait().unwrap();
    });
}

/// Catches a wait for a request that an outer plug holds back.
#[test]
fn plugs_of_two_sessions_nest() {
    on_each(|f, Two { one, two, bases }| {
        let start =
            |session: &Session, i: usize, offset| session.start_write(at(bases[i], offset), vec![1; 8]);
        let written = || Ok(vec![1; 8]);
        // Each way to wait for a request of the outer session.
        one.together(|| {
            let outer = start(&one, 0, 0);
            two.together(|| {
                let inner = start(&two, 1, 64);
                assert_eq!((outer.wait(), inner.wait()), (written(), written()));
            });
        });
        one.together(|| {
            let list = vec![OwnedOp::Write { remote: at(bases[0], 128), data: vec![1; 8] }];
            let (list, read) = (one.start_execute(list), one.start_read(bases[0], vec![0; 8]));
            two.together(|| {
                assert!(block_on(list).is_ok());
                assert_eq!(block_on(read), written());
            });
        });
        one.together(|| {
            let (mut outer, mut last) = (start(&one, 0, 192), start(&one, 0, 4096));
            two.together(|| {
                let mut inner = start(&two, 1, 256);
                assert!(wait_all(&mut [&mut outer, &mut inner], LONG));
                assert!(wait_any(&mut [&mut last], LONG).is_some());
                assert_eq!((outer.wait(), inner.wait()), (written(), written()));
                assert_eq!(last.wait_timeout(LONG), Some(written()));
            });
        });
        // The outer session once more, inside the other one.
        one.together(|| {
            let first = start(&one, 0, 320);
            two.together(|| {
                let second = start(&two, 1, 384);
                one.together(|| {
                    let third = start(&one, 0, 448);
                    assert_eq!((second.wait(), first.wait()), (written(), written()));
                    third.wait().unwrap();
                });
                start(&one, 0, 512).wait().unwrap();
            });
        });
        let ones = u64::from_ne_bytes([1; 8]);
        assert!((0..=512).step_by(64).all(|offset| f.memory.load_u64(offset) == ones));
    });
}

/// Catches a wait for a request that the plug of another thread holds back.
#[test]
fn another_thread_waits_for_a_request_that_is_held_back() {
    on_each(|_, Two { one, bases, .. }| {
        one.together(|| {
            let [blocking, awaited, mut limited] =
                [0, 64, 128].map(|offset| one.start_write(at(bases[0], offset), vec![1; 8]));
            let waits: [Box<dyn FnOnce() + Send>; 3] = [
                Box::new(move || drop(blocking.wait().unwrap())),
                Box::new(move || drop(block_on(awaited).unwrap())),
                Box::new(move || drop(limited.wait_timeout(LONG).unwrap().unwrap())),
            ];
            waits.into_iter().for_each(|wait| thread::spawn(wait).join().unwrap());
        });
    });
}

/// Also a request of the other direction.
#[test]
fn a_blocking_request_posts_what_was_started_before() {
    on_each(|f, Two { one, bases, .. }| {
        let held = one.together(|| {
            let before = one.stats();
            let held = one.start_write(bases[0], vec![1; 8]);
            one.read(at(bases[0], 64), &mut [0; 8]).unwrap();
            assert_eq!(one.stats().since(&before).doorbells, 2);
            held
        });
        held.wait().unwrap();
        assert_eq!(f.memory.load_u64(0), u64::from_ne_bytes([1; 8]));
    });
}
