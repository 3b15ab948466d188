//! Barriers, and members that fail, leave or vanish.

use std::time::Duration;

use rstore::{Coordinator, Error, Worker};

use crate::support::{LIMIT, PROVIDERS, Pool};

#[test]
fn workers_run_in_phases() {
    const WORKERS: usize = 3;
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 4, &[]);
        let namespace = pool.client().create("barrier").expect("a namespace");
        let mut coordinator = Coordinator::new(&namespace, WORKERS).expect("a barrier");
        let (address, pool) = (coordinator.address(), &pool);
        std::thread::scope(|scope| {
            for number in 0..WORKERS {
                scope.spawn(move || {
                    let namespace = pool.client().join("barrier").expect("the namespace");
                    let mut worker = Worker::join(&namespace, address, number).expect("a worker");
                    for phase in 1..=200_u8 {
                        let data = worker.wait(LIMIT).expect("a phase");
                        assert_eq!(data[..2], [phase, number as u8]);
                        worker.finish(phase < 200 || number != 1).expect("a write");
                    }
                });
            }
            for phase in 1..=200 {
                for number in 0..WORKERS {
                    coordinator.assign(number, &[phase, number as u8]).expect("a write");
                }
                match coordinator.run(LIMIT) {
                    Ok(()) => assert!(phase < 200),
                    Err(Error::WorkerFailed(1)) => assert_eq!(phase, 200),
                    Err(other) => panic!("{other}"),
                }
            }
        });
        let mut empty = Coordinator::new(&namespace, 1).expect("a barrier");
        empty.start().expect("a write");
        let outcome = empty.wait(Duration::from_millis(50));
        assert!(matches!(outcome, Err(Error::BarrierTimeout(_))), "{outcome:?}");
        let outcome = coordinator.assign(WORKERS, b"x");
        assert!(matches!(outcome, Err(Error::OutOfBounds { .. })));
    }
}

#[test]
fn a_member_that_is_dropped_ends_the_waits_of_the_others() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 1, 4, &[]);
        let namespace = pool.client().create("barrier").expect("a namespace");
        let mut coordinator = Coordinator::new(&namespace, 3).expect("a barrier");
        let address = coordinator.address();
        let join = |number| {
            let namespace = pool.client().join("barrier").expect("the namespace");
            Worker::join(&namespace, address, number).expect("a worker")
        };
        let outside = Worker::join(&pool.client().join("barrier").expect("the namespace"), address, 3);
        assert!(matches!(outside, Err(Error::OutOfBounds { .. })), "{outside:?}");
        let (mut one, mut two, three) = (join(0), join(1), join(2));
        // One leaves after its work, one in the middle of it, one before it.
        coordinator.start().expect("a write");
        one.wait(LIMIT).expect("a phase");
        one.finish(true).expect("a write");
        drop(one);
        two.wait(LIMIT).expect("a phase");
        drop(two);
        let failed = coordinator.wait(LIMIT);
        assert!(matches!(failed, Err(Error::WorkerFailed(1))), "{failed:?}");
        let mut waiting = three;
        waiting.wait(LIMIT).expect("a phase");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                waiting.finish(true).expect("a write");
                waiting.wait(LIMIT).expect_err("no phase")
            });
            drop(coordinator);
            let ended = waiting.join().expect("no panic");
            assert!(matches!(ended, Error::BarrierEnded), "{ended}");
        });
    }
}

#[test]
fn a_worker_that_leaves_after_a_phase_fails_the_next_one() {
    let pool = Pool::start(PROVIDERS[0], 1, 4, &[]);
    let namespace = pool.client().create("barrier").expect("a namespace");
    let mut coordinator = Coordinator::new(&namespace, 1).expect("a barrier");
    let mut worker = Worker::join(&namespace, coordinator.address(), 0).expect("a worker");
    coordinator.start().expect("a write");
    worker.wait(LIMIT).expect("a phase");
    worker.finish(true).expect("a write");
    drop(worker);
    coordinator.wait(LIMIT).expect("the worker has finished the phase");
    let failed = coordinator.run(LIMIT);
    assert!(matches!(failed, Err(Error::WorkerFailed(0))), "{failed:?}");
}
