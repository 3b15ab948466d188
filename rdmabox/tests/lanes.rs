//! Tests that a failed queue pair fails only its own requests, and is replaced while others go
//! on.
//!
//! Own program: it counts the descriptors of its process.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use futures::executor::block_on;
use rdmabox::{ProviderKind, RemoteAddr, RequestError, Session};

mod support;

use support::{
    LEN, REFUSED, at, base, on_each_provider, on_each_that_posts, pattern, process::HostProcess, providers,
    split, while_full,
};

fn wrong_key(base: RemoteAddr) -> RemoteAddr {
    RemoteAddr { rkey: base.rkey ^ 0x100, ..base }
}

/// Returns when every lane that failed has been replaced.
fn wait_until_lanes_are_up(session: &Session) {
    loop {
        let stats = session.stats();
        if stats.lane_rebuilds == stats.lane_failures {
            return;
        }
        std::thread::yield_now();
    }
}

/// Sets the flag that stops the other threads, also on a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns the open descriptors of this process, which runs one test at a time.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_refused_request_fails_alone_and_others_are_at_most_flushed() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = SetOnDrop(&over);
            for thread in 0..3usize {
                let (session, over) = (&session, &over);
                scope.spawn(move || {
                    let offset = thread << 20;
                    let mut round = 0;
                    while !over.load(Ordering::SeqCst) || round < 100 {
                        let data = pattern(5000, thread + round);
                        loop {
                            match session.write(at(base, offset), &data) {
                                Ok(()) => break,
                                Err(e) => assert_eq!(e, RequestError::Flushed),
                            }
                        }
                        let mut back = vec![0; 5000];
                        loop {
                            match session.read(at(base, offset), &mut back) {
                                Ok(()) => break,
                                Err(e) => assert_eq!(e, RequestError::Flushed),
                            }
                        }
                        assert!(back == data);
                        round += 1;
                    }
                });
            }
            for _ in 0..20 {
                assert_eq!(session.write(wrong_key(at(base, 3 << 20)), &[1; 8]), Err(REFUSED));
            }
        });
        wait_until_lanes_are_up(&session);
        assert_eq!(session.stats().lane_failures, 20);
        assert!(session.is_connected());
        assert_eq!(session.in_flight().0, 0);
    });
}

#[test]
fn alone_it_gets_its_own_status_and_the_next_lane_serves_the_next() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        assert_eq!(session.read(wrong_key(base), &mut [0; 8]), Err(REFUSED));
        session.write(base, &[1; 8]).unwrap();
        assert_eq!(session.fetch_add(at(base, LEN), 1), Err(REFUSED));
        session.write(base, &[2; 8]).unwrap();
        wait_until_lanes_are_up(&session);
        let stats = session.stats();
        assert_eq!((stats.errors, stats.lane_failures, stats.lane_rebuilds), (2, 2, 2));
    });
}

#[test]
fn failures_in_a_row_leave_nothing_behind() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let fail = |count: usize| {
            for i in 0..count {
                assert_eq!(session.write(wrong_key(base), &[1; 8]), Err(REFUSED));
                session.write(at(base, i * 8), &(i as u64).to_ne_bytes()).unwrap();
                assert_eq!(f.memory.load_u64(i * 8), i as u64);
            }
            wait_until_lanes_are_up(&session);
        };
        fail(20);
        let before = descriptors();
        fail(200);
        // The host lets go of the old ends on its own.
        while descriptors() > before {
            std::thread::yield_now();
        }
        let stats = session.stats();
        assert_eq!((stats.errors, stats.lane_failures, stats.lane_rebuilds), (220, 220, 220));
        assert!(session.is_connected());
    });
}

#[test]
fn with_one_queue_pair_requests_wait_until_it_is_back() {
    on_each_provider(|mut f| {
        f.options.queue_pairs = 1;
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        for i in 0..50usize {
            assert_eq!(session.write(wrong_key(base), &[1; 8]), Err(REFUSED));
            // Now its only queue pair is down.
            let data = pattern(300, i);
            let started = session.start_write(at(base, 8192), data.clone());
            let send = send.clone();
            session.write_then(at(base, 16384), data.clone(), move |outcome| {
                send.send(split(outcome).0).unwrap();
            });
            session.write(base, &data).unwrap();
            let mut back = vec![0; 300];
            session.read(base, &mut back).unwrap();
            assert!(back == data);
            assert_eq!(started.wait(), Ok(data));
            assert_eq!(receive.recv(), Ok(Ok(())));
        }
        wait_until_lanes_are_up(&session);
        assert_eq!((session.stats().errors, session.stats().lane_failures), (50, 50));
    });
}

#[test]
fn only_the_wrong_part_of_a_refused_merged_request_fails() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let data = pattern(4096, 1);
        let before = session.stats();
        // The first part is posted first. The other two are one run, whose second part is outside.
        let parts = [(at(base, 0), &data[..]), (at(base, LEN - 4096), &data[..]), (at(base, LEN), &data[..])];
        assert_eq!(session.write_vectored(&parts), Err(REFUSED));
        let since = session.stats().since(&before);
        // The parts of the run are repeated alone.
        assert_eq!((since.work_requests, since.doorbells, since.merged), (4, 3, 1));
        assert_eq!((since.errors, since.repeated, since.bytes_written), (1, 2, 8192));
        let mut found = vec![1; 4096];
        for right in [0, LEN - 4096] {
            f.memory.read(right, &mut found);
            assert!(found == data, "{right}");
        }
        wait_until_lanes_are_up(&session);
    });
}

#[test]
fn each_of_several_requests_in_one_batch_gets_its_own_outcome() {
    const PART: usize = 4096;
    on_each_that_posts(|mut f| {
        (f.options.window_bytes, f.options.queue_pairs) = (4 * PART as u64, 1);
        let session = f.connect();
        let base = base(&session);
        // In posting order: a lone write, two merged writes, and a write that must not overtake the
        // first. The second merged write is out of range.
        let places = [at(base, 0), at(base, LEN - PART), at(base, LEN), at(base, 8)];
        let expected = [Ok(()), Ok(()), Err(REFUSED), Err(RequestError::Flushed)];

        let (before, writes) = while_full(&session, at(base, 1 << 20), 4 * PART, move |session| {
            let write = |(i, place)| session.start_write(place, pattern(PART, 1 + i));
            places.into_iter().enumerate().map(write).collect::<Vec<_>>()
        });
        let outcomes: Vec<_> = writes.into_iter().map(|write| split(write.wait()).0).collect();
        assert_eq!(outcomes, expected);
        wait_until_lanes_are_up(&session);
        let took = session.stats().since(&before);
        assert_eq!((took.work_requests, took.doorbells, took.merged), (6, 4, 1));
        assert_eq!((took.errors, took.bytes_written, took.lane_failures), (2, 6 * PART as u64, 2));
        let mut found = vec![0; PART + 8];
        f.memory.read(0, &mut found);
        assert!(found[..PART] == pattern(PART, 1) && found[PART..] == [0; 8]);
        f.memory.read(LEN - PART, &mut found[..PART]);
        assert!(found[..PART] == pattern(PART, 2), "the part that is right");

        let (before, reads) = while_full(&session, at(base, 1 << 20), 4 * PART, move |session| {
            places.map(|place| session.start_read(place, vec![0xee; PART]))
        });
        let (outcomes, mut found): (Vec<_>, Vec<_>) =
            reads.into_iter().map(|read| split(read.wait())).unzip();
        assert_eq!(outcomes, expected);
        assert!(found.remove(0) == pattern(PART, 1));
        wait_until_lanes_are_up(&session);
        let took = session.stats().since(&before);
        assert_eq!((took.work_requests, took.doorbells, took.merged), (6, 4, 1));
        assert_eq!((took.errors, took.bytes_read, took.lane_failures), (2, 2 * PART as u64, 2));
        assert_eq!(session.in_flight(), (0, 4 * PART as u64));
        assert_eq!(session.write(at(base, 8), &[1; 8]), Ok(()));
    });
}

#[test]
fn a_write_that_was_flushed_can_be_repeated_and_later_ones_win() {
    on_each_provider(|mut f| {
        f.options.queue_pairs = 2;
        let session = f.connect();
        let base = base(&session);
        for round in 0..100usize {
            let first = session.start_write(at(base, 0), vec![1; 60_000]);
            let broken = session.start_write(wrong_key(base), vec![1; 8]);
            let second = session.start_write(at(base, 100), vec![2; 60_000]);
            assert!(broken.wait().is_err());
            assert!(matches!(split(first.wait()).0, Ok(()) | Err(RequestError::Flushed)));
            assert!(matches!(split(second.wait()).0, Ok(()) | Err(RequestError::Flushed)));
            let last = pattern(60_100, round);
            while let Err(e) = session.write(base, &last) {
                assert_eq!(e, RequestError::Flushed);
            }
            wait_until_lanes_are_up(&session);
            let mut found = vec![0; 60_100];
            f.memory.read(0, &mut found);
            assert!(found == last, "round {round}: an earlier write came late");
        }
    });
}

/// Adds `amount` to `word` once, as the documentation of [`RequestError`] does. Counts the attempts
/// whose outcome was unknown.
fn add_once(session: &Session, word: RemoteAddr, before: u64, amount: u64, unknown: &mut usize) {
    loop {
        match session.fetch_add(word, amount) {
            Err(e) if e.is_retryable() && e.outcome_unknown() => *unknown += 1,
            known => return assert_eq!(known, Ok(before)),
        }
        let now = loop {
            match session.fetch_add(word, 0) {
                Err(RequestError::Flushed) => {}
                other => break other.unwrap(),
            }
        };
        if now != before {
            return;
        }
    }
}

#[test]
fn a_flushed_addition_is_made_once() {
    const COUNT: u64 = 300;
    on_each_provider(|mut f| {
        (f.options.queue_pairs, f.options.direct) = (1, false);
        let session = f.connect();
        let base = base(&session);
        let (mut unknown, ended) = (0, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _ended = SetOnDrop(&ended);
            // Breaks the only queue pair again and again.
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    assert!(session.write(wrong_key(base), &[1; 8]).is_err());
                    wait_until_lanes_are_up(&session);
                }
            });
            (0..COUNT).for_each(|count| add_once(&session, at(base, 8), 7 * count, 7, &mut unknown));
        });
        eprintln!("{unknown} of {COUNT} had an unknown outcome");
        assert_eq!(f.memory.load_u64(8), 7 * COUNT);
    });
}

#[test]
fn a_host_that_is_gone_fails_everything() {
    on_each_provider(|mut f| {
        f.options.operation_timeout = Duration::from_secs(60);
        let session = f.connect();
        let base = base(&session);
        drop(f.running.take());
        let (send, receive) = mpsc::channel();
        let transfers: Vec<_> =
            (0..16).map(|i| session.start_write(at(base, i * 10_000), vec![1; 10_000])).collect();
        session.read_then(base, vec![0; 10_000], move |outcome| send.send(split(outcome).0).unwrap());
        // Until the engine has heard of the end, a write may still land in memory that is mapped.
        let fine = |result: &Result<(), RequestError>| match f.options.provider {
            Some(ProviderKind::Shm) => {
                assert!(matches!(result, Ok(()) | Err(RequestError::Disconnected)), "{result:?}")
            }
            _ => assert_eq!(*result, Err(RequestError::Disconnected)),
        };
        transfers.into_iter().for_each(|transfer| fine(&split(transfer.wait()).0));
        fine(&receive.recv().unwrap());
        while session.write(base, &[1; 8]).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(session.write(base, &[1; 8]), Err(RequestError::Disconnected));
        assert_eq!(split(session.start_write(base, vec![1; 8]).wait()).0, Err(RequestError::Disconnected));
        assert!(!session.is_connected());
        assert_eq!(session.in_flight().0, 0);
    });
}

/// The host's part of the last test; a test only in order to be found in this binary.
#[test]
#[ignore = "runs as the host process of another test"]
fn host() {
    support::process::serve();
}

#[test]
fn a_host_that_is_stopped_costs_requests_their_time_and_no_more() {
    for provider in providers() {
        let other = HostProcess::start(provider);
        let options = Session::builder()
            .provider(provider)
            .operation_timeout(Duration::from_secs(1))
            // How long a queue pair may take to be replaced.
            .connect_timeout(Duration::from_secs(60))
            .into_options();
        let session = Session::connect(&other.address, &options).unwrap();
        let base = base(&session);
        other.stop();
        // Requests on mapped memory need no help from the stopped host.
        let expected = match provider {
            ProviderKind::Tcp => Err(RequestError::Timeout(options.operation_timeout)),
            // Nor does a device need the process.
            _ => Ok(()),
        };
        let (send, receive) = mpsc::channel();
        session.write_then(at(base, 0), vec![1; 1000], move |outcome| send.send(split(outcome)).unwrap());
        assert_eq!(receive.recv().unwrap(), (expected.clone(), vec![1; 1000]), "a callback, {provider}");
        assert_eq!(
            split(block_on(session.start_write(at(base, 5000), vec![2; 1000]))),
            (expected.clone(), vec![2; 1000])
        );
        assert_eq!(session.write(at(base, 10_000), &[3; 1000]), expected, "a call that blocks, {provider}");
        // By now no queue pair may be left: these wait for one.
        assert_eq!(session.read(at(base, 10_000), &mut [0; 1000]), expected);
        assert_eq!(
            split(session.start_write(at(base, 15_000), vec![2; 1000]).wait()),
            (expected.clone(), vec![2; 1000])
        );
        assert_eq!(session.read(at(base, 10_000), &mut [0; 1000]), expected);
        // A started request gets a queue pair as soon as there is one again.
        let (send, receive) = mpsc::channel();
        session.read_then(at(base, 50_000), vec![1; 1000], move |outcome| send.send(split(outcome)).unwrap());
        other.go_on();
        assert_eq!(receive.recv().unwrap(), (Ok(()), vec![0; 1000]));
        wait_until_lanes_are_up(&session);
        session.write(at(base, 0), &[9; 1000]).unwrap();
        let mut back = [0; 1000];
        session.read(at(base, 0), &mut back).unwrap();
        assert_eq!(back, [9; 1000]);
        assert!(session.is_connected());
    }
}
