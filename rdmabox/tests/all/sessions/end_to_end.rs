//! End-to-end tests of sessions on every provider: one-sided requests, ordered lists, calls, and
//! the loss of one side.

use std::{sync::atomic::Ordering, time::Duration};

use rdmabox::{
    Address, AtomicScope, BatchMode, ConnectError, Host, Op, PollingMode, PreMrThreshold, ProviderKind,
    RemoteAddr, RequestError, Session,
};

use crate::support::{
    Echo, Fixture, LEN, at, base, beside_a_changing_word, on_each_provider, on_each_that_posts, pattern,
    providers,
};

#[test]
fn bytes_arrive_and_come_back() {
    on_each_provider(|f| {
        let session = f.connect();
        assert_eq!(session.provider(), f.options.provider.unwrap());
        let base = base(&session);
        for (seed, len) in [0, 1, 8, 220, 221, 4095, 4096, 4097, 70_000, 1 << 20].into_iter().enumerate() {
            let offset = 4096 * 3 + seed;
            let data = pattern(len, seed);
            session.write(at(base, offset), &data).unwrap();
            let mut direct = vec![0; len];
            f.memory.read(offset, &mut direct);
            assert!(direct == data, "{len} bytes written");
            let mut back = vec![0; len];
            session.read(at(base, offset), &mut back).unwrap();
            assert!(back == data, "{len} bytes read");
        }
        assert_eq!(f.service.calls.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn adjacent_requests_of_one_submission_are_one_work_request_and_disjoint_ones_one_doorbell() {
    on_each_provider(|mut f| {
        f.options.queue_pairs = 1;
        let session = f.connect();
        let base = base(&session);
        let blocks: Vec<Vec<u8>> = (0..16).map(|i| pattern(4096, i)).collect();
        let delta =
            |before: &rdmabox::StatsSnapshot, name: &str| session.stats().get(name) - before.get(name);

        let before = session.stats();
        let parts: Vec<(RemoteAddr, &[u8])> =
            blocks.iter().enumerate().map(|(i, b)| (at(base, i * 4096), b.as_slice())).collect();
        session.write_vectored(&parts).unwrap();
        assert_eq!((delta(&before, "work_requests"), delta(&before, "doorbells")), (1, 1));
        assert_eq!(delta(&before, "merged"), 15);

        let before = session.stats();
        let parts: Vec<(RemoteAddr, &[u8])> =
            blocks.iter().enumerate().map(|(i, b)| (at(base, i * 8192), b.as_slice())).collect();
        session.write_vectored(&parts).unwrap();
        assert_eq!((delta(&before, "work_requests"), delta(&before, "doorbells")), (16, 1));

        let before = session.stats();
        let mut out = vec![vec![0u8; 4096]; 16];
        let mut parts: Vec<(RemoteAddr, &mut [u8])> =
            out.iter_mut().enumerate().map(|(i, b)| (at(base, i * 8192), b.as_mut_slice())).collect();
        session.read_vectored(&mut parts).unwrap();
        assert_eq!((delta(&before, "work_requests"), delta(&before, "doorbells")), (16, 1));
        assert!(out == blocks);
    });
}

#[test]
fn the_scope_of_atomics_is_known_at_both_ends() {
    on_each_provider(|f| {
        let (session, running) = (f.connect(), f.running.as_ref().unwrap());
        let scope = session.atomic_scope();
        assert_eq!(scope, running.atomic_scope(session.provider()));
        match session.provider() {
            // Beside a device with a scope of its own, no provider covers the others.
            ProviderKind::Rdma => assert!(scope <= AtomicScope::Global),
            _ => assert_eq!(scope, AtomicScope::Global),
        }
        let unserved = [ProviderKind::Shm, ProviderKind::Tcp, ProviderKind::Rdma]
            .into_iter()
            .filter(|kind| !running.addresses().iter().any(|address| address.provider() == *kind));
        unserved.for_each(|kind| assert_eq!(running.atomic_scope(kind), AtomicScope::None, "{kind}"));
    });
}

/// A word that a processor of the host changes is loaded as a whole, also beside other requests.
#[test]
fn a_loaded_word_is_whole_and_needs_the_right_to_read_only() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let before = session.stats();
        beside_a_changing_word(&f.memory, 4096, |values| {
            for _ in 0..2000 {
                // Adjacent reads would merge with a plain one.
                let neighbours = session.start_read(at(base, 4104), vec![0; 4096]);
                let found = session.load_u64(at(base, 4096));
                assert!(found.as_ref().is_ok_and(|found| values.contains(found)), "{found:x?}");
                neighbours.wait().unwrap();
            }
        });
        let since = session.stats().since(&before);
        assert_eq!((since.read_requests, since.atomic_requests, since.merged), (4000, 0, 0));
        for offset in [1, 4, 7] {
            let refused = session.load_u64(at(base, offset));
            assert!(matches!(refused, Err(RequestError::Invalid(_))), "{refused:?}");
        }
        assert_eq!(session.stats().errors, 0);

        // Earlier writes of a writer are seen after the word.
        let flag = at(base, 8192);
        for round in 1..100 {
            session.write(at(base, 16384), &[round; 64]).unwrap();
            session
                .execute(&mut [Op::Write { remote: flag, data: &u64::from(round).to_ne_bytes() }])
                .unwrap();
            assert_eq!(session.load_u64(flag), Ok(round.into()));
            assert_eq!(f.memory.load_u64(8192), round.into());
        }
    });
}

#[test]
fn the_threshold_decides_between_staging_and_registering() {
    on_each_that_posts(|mut f| {
        f.options.pre_mr_threshold = PreMrThreshold::Bytes(8192);
        let session = f.connect();
        let base = base(&session);
        let data = pattern(8193, 1);
        for (len, pre, dynamic) in [(8192, 8192, 0), (8193, 0, 8193)] {
            for write in [true, false] {
                let before = session.stats();
                if write {
                    session.write(base, &data[..len]).unwrap();
                } else {
                    session.read(base, &mut vec![0; len]).unwrap();
                }
                let after = session.stats();
                assert_eq!(after.get("pre_mr_bytes") - before.get("pre_mr_bytes"), pre, "{len} {write}");
                assert_eq!(after.get("dyn_mr_bytes") - before.get("dyn_mr_bytes"), dynamic, "{len} {write}");
            }
        }
        // Merged requests are judged by their sum.
        for (count, pre, dynamic) in [(2, 8192, 0), (3, 0, 3 * 4096)] {
            let before = session.stats();
            let parts: Vec<(RemoteAddr, &[u8])> =
                (0..count).map(|i| (at(base, i * 4096), &data[..4096])).collect();
            session.write_vectored(&parts).unwrap();
            let after = session.stats();
            assert_eq!(after.get("work_requests") - before.get("work_requests"), 1);
            assert_eq!(after.get("pre_mr_bytes") - before.get("pre_mr_bytes"), pre);
            assert_eq!(after.get("dyn_mr_bytes") - before.get("dyn_mr_bytes"), dynamic);
        }
    });
}

#[test]
fn ordered_lists_run_in_order_and_give_old_values() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (mut first, mut second, mut third) = (1, 1, 1);
        let data = pattern(5000, 3);
        session
            .execute(&mut [
                Op::Write { remote: at(base, 4096), data: &data },
                Op::CompareSwap { remote: base, compare: 0, swap: 5000, old: &mut first },
                Op::CompareSwap { remote: base, compare: 0, swap: 9, old: &mut second },
                Op::FetchAdd { remote: base, add: 7, old: &mut third },
            ])
            .unwrap();
        assert_eq!((first, second, third), (0, 5000, 5000));
        assert_eq!(f.memory.load_u64(0), 5007);
        let mut back = vec![0; 5000];
        session.execute(&mut [Op::Read { remote: at(base, 4096), out: &mut back }]).unwrap();
        assert!(back == data);
    });
}

#[test]
fn threads_share_a_session_with_all_options() {
    for provider in providers() {
        for &batch in BatchMode::ALL {
            for &polling in PollingMode::ALL {
                let mut f = Fixture::new(provider);
                f.options.batch = batch;
                f.options.polling = polling;
                f.options.queue_pairs = 2;
                // A window so small that requests wait for it.
                f.options.window_bytes = 64 * 1024;
                let session = f.connect();
                let base = base(&session);
                std::thread::scope(|scope| {
                    for thread in 0..4usize {
                        let session = &session;
                        scope.spawn(move || {
                            for round in 0..40 {
                                let len = 1 + (round * 997 + thread * 131) % 20_000;
                                let offset = thread * (1 << 20) + round * 100;
                                let data = pattern(len, thread * 1000 + round);
                                session.write(at(base, offset), &data).unwrap();
                                let mut back = vec![0; len];
                                session.read(at(base, offset), &mut back).unwrap();
                                assert!(back == data, "{provider} {batch} {polling}");
                            }
                        });
                    }
                });
            }
        }
    }
}

#[test]
fn overlapping_writes_of_one_submission_land_in_order() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let blocks: Vec<Vec<u8>> = (0..40).map(|i| vec![i as u8; 10_000]).collect();
        let parts: Vec<(RemoteAddr, &[u8])> =
            blocks.iter().enumerate().map(|(i, b)| (at(base, i * 100), b.as_slice())).collect();
        session.write_vectored(&parts).unwrap();
        let mut expected = vec![0; 10_000 + 39 * 100];
        for (i, block) in blocks.iter().enumerate() {
            expected[i * 100..i * 100 + 10_000].copy_from_slice(block);
        }
        let mut back = vec![0; expected.len()];
        session.read(base, &mut back).unwrap();
        assert!(back == expected);
    });
}

#[test]
fn calls_of_many_threads_get_their_own_replies() {
    on_each_provider(|f| {
        let session = f.connect();
        std::thread::scope(|scope| {
            for thread in 0..24usize {
                let session = &session;
                scope.spawn(move || {
                    let mut reply = Vec::new();
                    for round in 0..50 {
                        let request = pattern(1 + thread * 50 + round, thread);
                        session.call(&request, &mut reply).unwrap();
                        assert!(reply.iter().rev().eq(request.iter()));
                    }
                });
            }
        });
        let longest = pattern(rdmabox::MAX_CALL, 1);
        let mut reply = Vec::new();
        session.call(&longest, &mut reply).unwrap();
        assert!(reply.iter().rev().eq(longest.iter()));
        let too_long = vec![0; rdmabox::MAX_CALL + 1];
        assert!(matches!(session.call(&too_long, &mut reply), Err(RequestError::Invalid(_))));
        session.call(b"", &mut reply).unwrap();
        assert_eq!(reply, b"");
    });
}

#[test]
fn a_refused_request_fails_with_its_status_and_touches_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let outside = at(base, LEN - 4);
        let error = session.write(outside, &[1; 8]).unwrap_err();
        assert_eq!(error, RequestError::Completion(rdmabox::WcStatus::RemAccessErr));
        assert_eq!(f.memory.load_u64(LEN - 8), 0);
        // The session goes on, on its other queue pairs and then on a new one.
        for _ in 0..16 {
            session.write(base, &[1; 8]).unwrap();
        }
        assert!(session.is_connected());
        assert_eq!((session.stats().get("errors"), session.stats().get("lane_failures")), (1, 1));
    });
}

#[test]
fn a_malformed_call_ends_that_session_only() {
    on_each_provider(|f| {
        let (bad, good) = (f.connect(), f.connect());
        let mut reply = Vec::new();
        assert_eq!(bad.call(b"bad", &mut reply), Err(RequestError::Disconnected));
        good.call(b"ok", &mut reply).unwrap();
        assert_eq!(reply, b"ko");
    });
}

#[test]
fn a_host_that_goes_fails_requests_and_one_that_is_dropped_leaves_nothing() {
    on_each_provider(|mut f| {
        let session = f.connect();
        let base = base(&session);
        drop(f.running.take());
        assert_eq!(f.service.ended.load(Ordering::SeqCst), 1);
        let mut reply = Vec::new();
        assert_eq!(session.call(b"x", &mut reply), Err(RequestError::Disconnected));
        // The engine detects the end by itself. Until then a write may land in the mapped memory.
        while session.write(base, &[1; 8]).is_ok() {
            std::thread::yield_now();
        }
        assert!(!session.is_connected());
        let error = Session::connect(&f.address, &f.options).unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        let error = session.reconnect().unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        if let Address::Unix(path) = &f.address {
            assert!(!path.exists());
        }
    });
}

#[test]
fn closed_sessions_are_reported_to_the_service() {
    on_each_provider(|f| {
        for expected in 1..=3 {
            drop(f.connect());
            while f.service.ended.load(Ordering::SeqCst) < expected {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn a_loopback_address_leads_to_shared_memory_unless_tcp_is_forced() {
    let mut f = Fixture::new(ProviderKind::Tcp);
    assert_eq!(f.connect().provider(), ProviderKind::Tcp);
    f.options.provider = None;
    let session = f.connect();
    assert_eq!(session.provider(), ProviderKind::Shm);
    assert!(session.description().starts_with("shared memory via unix:"));
    f.options.provider = Some(ProviderKind::Shm);
    let error = Session::connect(&f.address, &f.options).unwrap_err().to_string();
    assert!(error.contains("provider = shm: it needs an address of another kind"), "{error}");
}

#[test]
fn mapped_memory_is_given_only_where_it_is_mapped_and_allowed() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let mapped = session.map(at(base, 4096), 100);
        assert_eq!(mapped.is_some(), session.provider() == ProviderKind::Shm);
        if let Some((memory, offset)) = mapped {
            f.memory.write(4096, b"there");
            let mut found = [0; 5];
            memory.read(offset, &mut found);
            assert_eq!(&found, b"there");
            assert!(session.map(at(base, LEN - 1), 2).is_none());
            assert!(session.map(RemoteAddr { rkey: base.rkey ^ 0x100, ..base }, 1).is_none());
        }
    });
}

#[test]
fn addresses_in_use_and_stale_sockets() {
    let f = Fixture::new(ProviderKind::Shm);
    for address in f.running.as_ref().unwrap().addresses() {
        let error = Host::new()
            .unwrap()
            .listen(std::slice::from_ref(address), std::sync::Arc::new(Echo::default()))
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("cannot listen on {address}: ")), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let running = Host::new()
        .unwrap()
        .listen(&[Address::Unix(path.clone())], std::sync::Arc::new(Echo::default()))
        .unwrap();
    drop(running);
    assert!(!path.exists());
}

#[test]
fn garbage_on_a_listener_harms_no_session() {
    use std::io::Write;
    on_each_provider(|f| {
        let good = f.connect();
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 40], &[0xff; 4096], b"rdmabxS\x01"] {
            match &f.address {
                Address::Unix(path) => {
                    std::os::unix::net::UnixStream::connect(path).unwrap().write_all(garbage).unwrap();
                }
                Address::Tcp { host, port } | Address::Rdma { host, port } => {
                    // The host may close before everything is written.
                    let _ = std::net::TcpStream::connect((host.as_str(), *port)).unwrap().write_all(garbage);
                }
                other => panic!("no listener at {other}"),
            }
        }
        let mut reply = Vec::new();
        good.call(b"still here", &mut reply).unwrap();
        assert_eq!(reply, b"ereh llits");
    });
}

#[test]
fn a_silent_server_is_given_up_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = Address::Tcp { host: "127.0.0.1".into(), port };
    let timeout = Duration::from_millis(200);
    let error = Session::builder().connect_timeout(timeout).connect(&address).unwrap_err();
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
}

#[test]
fn a_read_of_a_list_gives_what_was_there_before_a_later_step() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        for round in 0..100u8 {
            f.memory.write(0, &[round; 64]);
            let (mut out, mut old) = ([0u8; 64], 0);
            let data = [round + 100; 64];
            session
                .execute(&mut [
                    Op::Read { remote: base, out: &mut out },
                    Op::Write { remote: base, data: &data },
                ])
                .unwrap();
            assert_eq!(out, [round; 64]);
            session
                .execute(&mut [
                    Op::Read { remote: base, out: &mut out },
                    Op::CompareSwap {
                        remote: base,
                        compare: u64::from_ne_bytes([round + 100; 8]),
                        swap: 7,
                        old: &mut old,
                    },
                    Op::Write { remote: base, data: &[1; 8] },
                ])
                .unwrap();
            assert_eq!((out, old), ([round + 100; 64], u64::from_ne_bytes([round + 100; 8])));
            assert_eq!(f.memory.load_u64(0), u64::from_ne_bytes([1; 8]));
        }
    });
}

#[test]
fn a_step_that_is_too_long_is_invalid_and_changes_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        // Never touched, so that it takes no memory.
        let data = vec![0u8; (1 << 30) + 1];
        let list = &mut [Op::Write { remote: base, data: &[1; 8] }, Op::Write { remote: base, data: &data }];
        assert!(matches!(session.execute(list), Err(RequestError::Invalid(_))));
        assert_eq!(f.memory.load_u64(0), 0);
        session.write(base, &[1; 8]).unwrap();
    });
}

#[test]
fn a_panic_in_the_service_ends_that_session_only() {
    on_each_provider(|f| {
        let good = f.connect();
        let mut reply = Vec::new();
        // More often than there are threads to answer calls.
        for round in 1..=8 {
            let bad = f.connect();
            assert_eq!(bad.call(b"panic", &mut reply), Err(RequestError::Disconnected));
            while f.service.ended.load(Ordering::SeqCst) < round {
                std::thread::yield_now();
            }
        }
        good.call(b"ok", &mut reply).unwrap();
        assert_eq!(reply, b"ko");
    });
}

#[test]
fn a_failed_call_ends_the_whole_session() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        assert_eq!(session.call(b"bad", &mut Vec::new()), Err(RequestError::Disconnected));
        assert_eq!(session.write(base, &[1; 8]), Err(RequestError::Disconnected));
        assert_eq!(f.memory.load_u64(0), 0);
    });
}

#[test]
fn endless_timeouts_are_taken_for_long_ones() {
    on_each_provider(|mut f| {
        f.options.operation_timeout = Duration::MAX;
        f.options.connect_timeout = Duration::MAX;
        let session = f.connect();
        session.write(base(&session), &[1; 8]).unwrap();
        assert_eq!(f.memory.load_u64(0), u64::from_ne_bytes([1; 8]));
    });
}

#[test]
fn a_listener_that_accepts_no_connection_is_abandoned_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full");
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    // The queue has one place.
    let _first = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let error = Session::builder()
        .connect_timeout(Duration::from_millis(200))
        .connect(&Address::Unix(path))
        .unwrap_err();
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
}

#[test]
fn atomics_of_several_threads_sum_up() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (threads, rounds) = (4u64, 500u64);
        let olds: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let mut olds = Vec::new();
                        for _ in 0..rounds {
                            olds.push(session.fetch_add(base, 3).unwrap());
                            // The same with a swap, on the word beside it.
                            let mut seen = 0;
                            loop {
                                match session.compare_swap(at(base, 8), seen, seen + 5).unwrap() {
                                    old if old == seen => break,
                                    old => seen = old,
                                }
                            }
                        }
                        olds
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert_eq!(f.memory.load_u64(0), 3 * threads * rounds);
        assert_eq!(f.memory.load_u64(8), 5 * threads * rounds);
        // Every value was given to exactly one of them, and to each in ascending order.
        assert!(olds.iter().all(|own| own.is_sorted()));
        let mut all: Vec<u64> = olds.into_iter().flatten().collect();
        all.sort_unstable();
        assert!(all.into_iter().eq((0..threads * rounds).map(|i| 3 * i)));
    });
}
