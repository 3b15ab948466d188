//! What the RDMAbox paper promises of each mechanism, counted, on every provider.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use parking_lot::Mutex;
use rdmabox::{
    Access, BatchMode, CallsBy, Export, Host, Memory, Peer, PollingMode, ProviderKind, RemoteAddr, Reply,
    Service, Session, SessionOptions,
    admission::{AdmissionPolicy, LatencyWindow, LatencyWindowOptions},
    provider::rdma,
    stats::StatsSnapshot,
};

mod support;

use support::{Fixture, addresses, at, base, on_each_that_posts, pattern, providers, while_full};

/// Makes requests of `len` bytes at these places in one submission, and gives what that took.
fn submit(session: &Session, write: bool, places: &[RemoteAddr], len: usize) -> StatsSnapshot {
    let before = session.stats();
    if write {
        let data = pattern(len, 1);
        let parts: Vec<_> = places.iter().map(|place| (*place, &data[..])).collect();
        session.write_vectored(&parts).unwrap();
    } else {
        let mut out = vec![vec![0; len]; places.len()];
        let mut parts: Vec<_> =
            places.iter().zip(&mut out).map(|(place, out)| (*place, &mut out[..])).collect();
        session.read_vectored(&mut parts).unwrap();
    }
    session.stats().since(&before)
}

fn wqes_doorbells_merged(s: &StatsSnapshot) -> (u64, u64, u64) {
    (s.wqes, s.doorbells, s.merged)
}

fn offsets(base: RemoteAddr, offsets: impl IntoIterator<Item = usize>) -> Vec<RemoteAddr> {
    offsets.into_iter().map(|offset| at(base, offset)).collect()
}

// Merging and chaining.

#[test]
fn a_request_alone_is_one_work_request_and_one_doorbell() {
    on_each_that_posts(|mut f| {
        for batch in BatchMode::ALL {
            f.options.batch = batch;
            let session = f.connect();
            let base = base(&session);
            for write in [true, false] {
                assert_eq!(
                    wqes_doorbells_merged(&submit(&session, write, &[base], 512)),
                    (1, 1, 0),
                    "{batch}"
                );
            }
        }
    });
}

#[test]
fn what_each_mode_makes_of_adjacent_disjoint_and_mixed_requests() {
    const N: u64 = 16;
    on_each_that_posts(|mut f| {
        for batch in BatchMode::ALL {
            f.options.batch = batch;
            let session = f.connect();
            let base = base(&session);
            let adjacent = offsets(base, (0..16).map(|i| i * 256));
            let disjoint = offsets(base, (0..16).map(|i| i * 4096));
            // Four runs of four, in an order that is not theirs.
            let mixed = offsets(base, (0..16).map(|i| i % 4 * 65_536 + i / 4 * 256));
            let (adjacent_is, disjoint_is, mixed_is) = match batch {
                BatchMode::Single => ((N, N, 0), (N, N, 0), (N, N, 0)),
                BatchMode::Merge => ((1, 1, N - 1), (N, N, 0), (4, 4, 12)),
                BatchMode::Doorbell => ((N, 1, 0), (N, 1, 0), (N, 1, 0)),
                BatchMode::Hybrid => ((1, 1, N - 1), (N, 1, 0), (4, 1, 12)),
            };
            for write in [true, false] {
                for (places, expected) in
                    [(&adjacent, adjacent_is), (&disjoint, disjoint_is), (&mixed, mixed_is)]
                {
                    let took = submit(&session, write, places, 256);
                    assert_eq!(wqes_doorbells_merged(&took), expected, "{batch} {write}");
                    assert_eq!(took.chain_lengths.iter().sum::<u64>(), took.doorbells);
                }
            }
        }
    });
}

#[test]
fn table_one() {
    on_each_that_posts(|mut f| {
        let totals: Vec<StatsSnapshot> = BatchMode::ALL
            .into_iter()
            .map(|batch| {
                f.options.batch = batch;
                let session = f.connect();
                let base = base(&session);
                let before = session.stats();
                for round in 1..20usize {
                    let places = offsets(base, (0..48).map(|i| (i / round * (round + 1) + i % round) * 512));
                    submit(&session, round % 2 == 0, &places, 512);
                }
                session.stats().since(&before)
            })
            .collect();
        let [single, merge, doorbell, hybrid] = &totals[..] else { panic!("four modes") };
        assert!(hybrid.wqes < single.wqes && merge.wqes < single.wqes);
        assert_eq!((doorbell.wqes, hybrid.wqes), (single.wqes, merge.wqes));
        assert!(doorbell.doorbells < single.doorbells && hybrid.doorbells < single.doorbells);
        assert!(totals.iter().all(|s| s.merged + s.wqes == single.wqes && s.errors == 0));
    });
}

/// The same for the messages of calls.
#[test]
fn calls_of_several_threads_leave_with_one_doorbell() {
    for provider in providers() {
        eprintln!("--- {provider}");
        let mut f = Fixture::new(provider);
        f.options.calls = CallsBy::Reply;
        let session = f.connect();
        let call = || (0..100).for_each(|_| session.call(b"abc", &mut Vec::new()).unwrap());
        let counted = || (session.stats().call_messages, session.stats().call_doorbells);
        call();
        assert_eq!(counted(), (100, 100), "one thread, one message at a time");
        // Whether two meet is the scheduler's business.
        let met = (2..200).any(|round| {
            std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(call))));
            let (messages, doorbells) = counted();
            assert_eq!(messages, 100 + (round - 1) * 800);
            assert!(doorbells <= messages, "{doorbells} doorbells for {messages} messages");
            doorbells < messages
        });
        assert!(met, "over {provider} every message left alone");
    }
}

/// Tells where its exports are.
struct Several(Mutex<Vec<Export>>);

impl Service for Several {
    fn call(&self, peer: &Peer, _: &[u8], reply: &mut Reply<'_>) -> Result<(), String> {
        for export in &*self.0.lock() {
            let remote = peer.remote_addr(export);
            reply.extend_from_slice(&remote.to_le_bytes());
        }
        Ok(())
    }
}

#[test]
fn requests_to_two_regions_are_never_merged() {
    for provider in providers() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new().unwrap();
        let memory = Arc::new(Memory::shared("twice", 1 << 16).unwrap());
        let exports = (0..2).map(|_| host.export(&memory, Access::REMOTE_ALL).unwrap()).collect();
        let listen = addresses(provider, dir.path());
        let running = host.listen(&listen, Arc::new(Several(Mutex::new(exports)))).unwrap();
        let address = running.addresses().iter().find(|address| address.provider() == provider).unwrap();
        let options = SessionOptions { provider: Some(provider), ..SessionOptions::default() };
        let session = Session::connect(address, &options).unwrap();
        let mut reply = Vec::new();
        session.call(b"", &mut reply).unwrap();
        let regions: Vec<RemoteAddr> =
            reply.chunks(12).map(|place| RemoteAddr::from_le_bytes(place.try_into().unwrap())).collect();
        let [one, two] = regions[..] else { panic!("two regions") };
        assert_ne!(one.rkey, two.rkey);
        // The same bytes under two keys: adjacent addresses all the same.
        let two = RemoteAddr { addr: one.addr, ..two };
        let places = [at(one, 0), at(two, 512), at(one, 1024), at(two, 1536)];
        for write in [true, false] {
            assert_eq!(
                wqes_doorbells_merged(&submit(&session, write, &places, 512)),
                (4, 1, 0),
                "{provider}"
            );
        }
        // Each region's own are merged.
        let places = [at(one, 0), at(two, 1024), at(one, 512), at(two, 1536)];
        for write in [true, false] {
            assert_eq!(
                wqes_doorbells_merged(&submit(&session, write, &places, 512)),
                (2, 1, 2),
                "{provider}"
            );
        }
    }
}

#[test]
fn merges_and_chains_keep_to_the_limits_of_the_device() {
    on_each_that_posts(|mut f| {
        f.options.pre_mr_threshold = rdmabox::PreMrThreshold::Bytes(0);
        f.options.max_inline = 0;
        let session = f.connect();
        let base = base(&session);
        for write in [true, false] {
            // 30 elements a work request: 30 + 30 + 4 parts that are not gathered by copying.
            let took = submit(&session, write, &offsets(base, (0..64).map(|i| i * 512)), 512);
            assert_eq!(wqes_doorbells_merged(&took), (3, 1, 61));
            // Half a queue of 256 a doorbell, and a queue's worth a queue pair.
            let took = submit(&session, write, &offsets(base, (0..300).map(|i| i * 1024)), 512);
            assert_eq!(wqes_doorbells_merged(&took), (300, 3, 0));
            assert_eq!((took.chains, took.chain_length_sum), (3, 300));
            assert_eq!((took.chain_lengths[7], took.chain_lengths[6]), (2, 1));
        }
    });
}

#[test]
fn ordered_lists_are_one_chain_whatever_the_mode() {
    use rdmabox::Op;
    on_each_that_posts(|mut f| {
        for batch in BatchMode::ALL {
            f.options.batch = batch;
            let session = f.connect();
            let base = base(&session);
            let before = session.stats();
            let mut old = 0;
            session
                .execute(&mut [
                    Op::Write { remote: base, data: &[0; 8] },
                    Op::Write { remote: at(base, 8), data: &[0; 8] },
                    Op::FetchAdd { remote: base, add: 1, old: &mut old },
                ])
                .unwrap();
            assert_eq!(wqes_doorbells_merged(&session.stats().since(&before)), (3, 1, 0), "{batch}");
        }
    });
}

// Admission.

#[test]
fn the_window_is_never_exceeded() {
    for provider in providers() {
        for batch in BatchMode::ALL {
            let mut f = Fixture::new(provider);
            (f.options.batch, f.options.window_bytes) = (batch, 32 * 1024);
            let session = f.connect();
            let base = base(&session);
            std::thread::scope(|scope| {
                for thread in 0..4usize {
                    let session = &session;
                    scope.spawn(move || {
                        for round in 0..40usize {
                            let start = thread << 20;
                            let writes: Vec<_> = (0..12)
                                .map(|i| {
                                    session
                                        .start_write(at(base, start + i * 6000), pattern(1 + round * 100, i))
                                })
                                .collect();
                            let places = offsets(base, (0..6).map(|i| start + (1 << 19) + i * 5000));
                            submit(session, round % 2 == 0, &places, 2000);
                            writes.into_iter().for_each(|write| assert_eq!(write.wait().unwrap().0, Ok(())));
                        }
                    });
                }
            });
            let (now, peak) = session.in_flight();
            assert_eq!(now, 0);
            assert!((4096..=32 * 1024).contains(&peak), "{provider} {batch}: {peak}");
        }
    }
}

#[test]
fn what_waits_for_the_window_can_still_be_merged() {
    on_each_that_posts(|mut f| {
        (f.options.window_bytes, f.options.queue_pairs) = (4096, 1);
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        let own = Arc::clone(&session);
        session.write_then(at(base, 1 << 20), vec![1; 8], move |result, _| {
            assert_eq!(result, Ok(()));
            let before = own.stats();
            // In a callback nothing is polled: the first one fills the window until it has ended.
            let started: Vec<_> = [0, 8192, 9216, 10_240, 11_264]
                .into_iter()
                .map(|offset| {
                    own.start_write(at(base, offset), vec![2; if offset == 0 { 4096 } else { 1024 }])
                })
                .collect();
            send.send((before, started)).unwrap();
        });
        let (before, started) = receive.recv().unwrap();
        started.into_iter().for_each(|write| assert_eq!(write.wait().unwrap().0, Ok(())));
        let took = session.stats().since(&before);
        assert_eq!((took.wqes, took.merged, took.write_requests), (2, 3, 5));
        assert!(took.window_waits > 0);
        assert_eq!(session.in_flight().1, 4096);
    });
}

/// Has each of four threads start its own one, and waits until all have.
fn on_four_threads<T: Send>(start: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || start(i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn adjacent_requests_of_several_threads_are_one_work_request() {
    const PART: usize = 4096;
    on_each_that_posts(|mut f| {
        (f.options.window_bytes, f.options.queue_pairs) = (4 * PART as u64, 1);
        let session = f.connect();
        let base = base(&session);
        let (before, writes) = while_full(&session, at(base, 1 << 20), 4 * PART, move |session| {
            on_four_threads(|i| session.start_write(at(base, i * PART), pattern(PART, i)))
        });
        writes.into_iter().for_each(|write| assert_eq!(write.wait().unwrap().0, Ok(())));
        let took = session.stats().since(&before);
        assert_eq!(wqes_doorbells_merged(&took), (2, 2, 3));
        assert_eq!((took.write_requests, took.bytes_written), (5, 8 * PART as u64));
        for i in 0..4 {
            let mut found = vec![0; PART];
            f.memory.read(i * PART, &mut found);
            assert!(found == pattern(PART, i), "{i}");
        }
        let (before, reads) = while_full(&session, at(base, 1 << 20), 4 * PART, move |session| {
            on_four_threads(|i| session.start_read(at(base, i * PART), vec![0; PART]))
        });
        for (i, read) in reads.into_iter().enumerate() {
            let (result, found) = read.wait().unwrap();
            assert_eq!(result, Ok(()));
            assert!(found == pattern(PART, i), "{i}");
        }
        let took = session.stats().since(&before);
        assert_eq!(wqes_doorbells_merged(&took), (2, 2, 3));
        assert_eq!((took.read_requests, took.bytes_read), (4, 4 * PART as u64));
        assert_eq!(session.in_flight(), (0, 4 * PART as u64));
    });
}

#[test]
fn adjacent_requests_to_two_hosts_are_never_merged() {
    const PART: usize = 4096;
    on_each_that_posts(|mut f| {
        // Both export the same memory: what goes to one is adjacent to what goes to the other.
        let mut g = Fixture::of(f.address.provider(), Arc::clone(&f.memory));
        (f.options.window_bytes, f.options.queue_pairs) = (4 * PART as u64, 1);
        g.options = f.options.clone();
        let sessions = [f.connect(), g.connect()];
        let bases = [base(&sessions[0]), base(&sessions[1])];
        assert_eq!(bases[0].addr, bases[1].addr);
        for write in [true, false] {
            // By turns, while both windows are full. A callback must not wait, so that the other one has a thread.
            let both = sessions.clone();
            let start_all = move || {
                let start = |i: usize| {
                    let (session, place) = (&both[i % 2], at(bases[i % 2], i * PART));
                    match write {
                        true => session.start_write(place, pattern(PART, i)),
                        false => session.start_read(place, vec![0; PART]),
                    }
                };
                (0..6).map(start).collect::<Vec<_>>()
            };
            let second = Arc::clone(&sessions[1]);
            let second_full =
                move || while_full(&second, at(bases[1], 1 << 21), 4 * PART, move |_| start_all());
            let (before_first, (before_second, started)) =
                while_full(&sessions[0], at(bases[0], 1 << 20), 4 * PART, move |_| {
                    std::thread::spawn(second_full).join().unwrap()
                });
            for (i, transfer) in started.into_iter().enumerate() {
                let (result, bytes) = transfer.wait().unwrap();
                assert_eq!(result, Ok(()));
                assert!(bytes == pattern(PART, i), "{i}");
            }
            for (session, before) in sessions.iter().zip([before_first, before_second]) {
                assert_eq!(wqes_doorbells_merged(&session.stats().since(&before)), (4, 2, 0));
            }
        }
    });
}

/// One at a time, and remembers what it was told.
#[derive(Debug, Default)]
struct OneByOne {
    asked: AtomicU64,
    completed: Mutex<Vec<u64>>,
}

impl AdmissionPolicy for OneByOne {
    fn admit(&self, in_flight: u64, _: u64) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        assert_ne!(in_flight, 0, "with nothing in flight it is not asked");
        false
    }

    fn on_complete(&self, bytes: u64, _: Duration) {
        self.completed.lock().push(bytes);
    }
}

#[test]
fn a_policy_of_ones_own_decides() {
    on_each_that_posts(|mut f| {
        let policy = Arc::new(OneByOne::default());
        f.options.admission = Some(Arc::<OneByOne>::clone(&policy));
        let session = f.connect();
        let base = base(&session);
        let took = submit(&session, true, &offsets(base, (0..20).map(|i| i * 10_000)), 5000);
        assert_eq!((took.wqes, took.doorbells), (20, 20));
        assert!(took.window_waits > 0 && policy.asked.load(Ordering::SeqCst) > 0);
        submit(&session, false, &[base], 5000);
        session.fetch_add(base, 1).unwrap();
        assert_eq!(session.in_flight(), (0, 8192));
        let expected = std::iter::repeat_n(5000, 21).chain([8]).collect::<Vec<_>>();
        assert_eq!(*policy.completed.lock(), expected);
    });
}

/// A [`LatencyWindow`] that counts what it is told.
#[derive(Debug)]
struct Counted {
    window: LatencyWindow,
    asked: AtomicU64,
    completed: AtomicU64,
}

impl AdmissionPolicy for Counted {
    fn admit(&self, in_flight: u64, request: u64) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.window.admit(in_flight, request)
    }

    fn on_complete(&self, bytes: u64, latency: Duration) {
        self.completed.fetch_add(bytes, Ordering::SeqCst);
        self.window.on_complete(bytes, latency);
    }
}

#[test]
fn a_window_that_follows_latency_admits_everything_in_the_end() {
    const PART: usize = 4096;
    on_each_that_posts(|mut f| {
        let bounds = LatencyWindowOptions {
            min: 2 * PART as u64,
            max: 16 * PART as u64,
            start: 4 * PART as u64,
            step: PART as u64,
            ..LatencyWindowOptions::default()
        };
        let policy = Arc::new(Counted {
            window: LatencyWindow::new(bounds),
            asked: AtomicU64::new(0),
            completed: AtomicU64::new(0),
        });
        f.options.admission = Some(Arc::<Counted>::clone(&policy));
        let session = f.connect();
        let base = base(&session);
        // Two parts apart, so that none is merged. The last four of a round are one submission.
        let place = |thread: usize, i: usize| at(base, (thread << 20) + i * 2 * PART);
        on_four_threads(|thread| {
            for round in 0..10 {
                let start = |i| session.start_write(place(thread, i), pattern(PART, thread + round + i));
                let writes: Vec<_> = (0..60).map(start).collect();
                submit(&session, round % 2 == 0, &offsets(place(thread, 60), [0, 8192, 16384, 24576]), PART);
                writes.into_iter().for_each(|write| assert_eq!(write.wait().unwrap().0, Ok(())));
                assert!((bounds.min..=bounds.max).contains(&policy.window.bytes()));
            }
        });
        for (thread, i) in (0..4).flat_map(|thread| (0..60).map(move |i| (thread, i))) {
            let mut found = vec![0; PART];
            f.memory.read((thread << 20) + i * 2 * PART, &mut found);
            assert!(found == pattern(PART, thread + 9 + i), "{thread} {i}");
        }
        let (now, peak) = session.in_flight();
        assert_eq!(now, 0);
        assert!((2 * PART as u64..=bounds.max).contains(&peak), "{peak}");
        assert_eq!(policy.completed.load(Ordering::SeqCst), 4 * 10 * 64 * PART as u64);
        // Of each submission of four, all but a first one that finds nothing in flight.
        assert!(policy.asked.load(Ordering::SeqCst) > 0);
        let stats = session.stats();
        assert_eq!((stats.merged, stats.errors), (0, 0));
    });
}

#[test]
fn the_defaults_are_those_of_the_paper() {
    let options = SessionOptions::default();
    assert_eq!((options.queue_pairs, options.window_bytes), (4, 7 << 20));
    assert_eq!((options.batch, options.polling), (BatchMode::Hybrid, PollingMode::Adaptive));
    assert!(options.admission.is_none());
}

// preMR and dynMR.

#[test]
fn the_threshold_decides_for_single_and_merged_requests() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        for threshold in [0u64, 1, 4096, 10_000, u64::MAX] {
            f.options.pre_mr_threshold = rdmabox::PreMrThreshold::Bytes(threshold);
            let session = f.connect();
            let base = base(&session);
            for write in [true, false] {
                for (parts, len) in [
                    (1, 1),
                    (1, 2),
                    (1, 4096),
                    (1, 4097),
                    (1, 10_000),
                    (1, 10_001),
                    (2, 2048),
                    (3, 2048),
                    (5, 2000),
                    (5, 2001),
                ] {
                    let places = offsets(base, (0..parts).map(|i| i * len));
                    let took = submit(&session, write, &places, len);
                    let sum = (parts * len) as u64;
                    let staged = sum <= threshold;
                    let (pre, dynamic) = if staged { (sum, 0) } else { (0, sum) };
                    let registrations = if staged { 0 } else { parts as u64 };
                    assert_eq!(took.wqes, 1);
                    assert_eq!(
                        (took.pre_mr_bytes, took.dyn_mr_bytes),
                        (pre, dynamic),
                        "{threshold} {parts}x{len}"
                    );
                    assert_eq!((took.registrations, took.registered_bytes), (registrations, 0));
                }
            }
        }
    });
}

#[test]
fn a_measured_threshold_is_the_one_in_force() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        f.options.pre_mr_threshold = rdmabox::PreMrThreshold::Auto;
        let session = f.connect();
        let base = base(&session);
        // What it is depends on the machine. No more than a block of the pool is ever staged.
        let threshold = session.pre_mr_threshold();
        assert!(threshold <= 1 << 20, "{threshold}");
        for write in [true, false] {
            if threshold > 0 {
                let took = submit(&session, write, &[base], threshold as usize);
                assert_eq!((took.wqes, took.pre_mr_bytes, took.dyn_mr_bytes), (1, threshold, 0));
            }
            let took = submit(&session, write, &[base], threshold as usize + 1);
            assert_eq!((took.wqes, took.pre_mr_bytes, took.dyn_mr_bytes), (1, 0, threshold + 1));
        }
    });
}

#[test]
fn inline_data_has_its_own_limit() {
    on_each_that_posts(|mut f| {
        // What the device allows.
        let most = match f.address.provider() {
            ProviderKind::Shm | ProviderKind::Tcp => 1024,
            ProviderKind::Rdma => rdma::open(&f.options.rdma).unwrap().attr().max_inline_data,
        };
        let bytes = u64::from(most);
        for (max, len, inline) in [
            (0, 1, 0),
            (0, 8, 0),
            (8, 8, 8),
            (8, 9, 0),
            (220, 220, 220),
            (220, 221, 0),
            (most, most as usize, bytes),
        ] {
            f.options.max_inline = max;
            let session = f.connect();
            let base = base(&session);
            let took = submit(&session, true, &[base], len);
            assert_eq!((took.inline_bytes, took.pre_mr_bytes), (inline, len as u64 - inline), "{max} {len}");
            // A READ never is.
            assert_eq!(submit(&session, false, &[base], len).inline_bytes, 0);
        }
        f.options.max_inline = most + 1;
        assert!(Session::connect(&f.address, &f.options).is_err());
    });
}

// Completions.

#[test]
fn the_signal_interval_says_which_of_a_chain_report() {
    on_each_that_posts(|mut f| {
        for (interval, unsignaled) in [(0, 15), (1, 0), (2, 8), (4, 12), (5, 12), (16, 15), (100, 15)] {
            f.options.signal_interval = interval;
            let session = f.connect();
            let base = base(&session);
            for write in [true, false] {
                let took = submit(&session, write, &offsets(base, (0..16).map(|i| i * 4096)), 512);
                assert_eq!((took.wqes, took.unsignaled), (16, unsignaled), "{interval}");
                assert_eq!(took.completions, 16 - unsignaled, "{interval}");
                assert_eq!(submit(&session, write, &[base], 512).unsignaled, 0);
            }
        }
    });
}

#[test]
fn every_polling_mode_serves_every_front_door() {
    let modes = PollingMode::ALL.into_iter().chain([PollingMode::SharedCq(2), PollingMode::SharedCq(16)]);
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
                            session.write_then(place(2), pattern(5000, round + 2), move |result, _| {
                                send.send(result).unwrap();
                            });
                            assert!(session.fetch_add(at(base, 4_000_000), 1).is_ok());
                            assert_eq!(receive.recv(), Ok(Ok(())));
                            assert_eq!(started.wait().unwrap().0, Ok(()));
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
                // Poll, arm, poll, sleep: two polls that find nothing for each sleep, and one that finds it.
                assert!(took.empty_polls <= 2 * (took.sleeps + OPS), "{took:?}");
                assert!(took.sleeps <= 2 * OPS, "{took:?}");
                assert!(took.events <= took.sleeps);
            }
        }
    });
}

#[test]
fn an_idle_session_polls_nothing() {
    let modes = PollingMode::ALL.into_iter().chain([PollingMode::SharedCq(2)]);
    for polling in modes {
        on_each_that_posts(|mut f| {
            f.options.polling = polling;
            let (idle, other) = (f.connect(), f.connect());
            let base = base(&idle);
            let (send, receive) = mpsc::channel();
            idle.write_then(base, vec![1; 8], move |result, _| send.send(result).unwrap());
            assert_eq!(receive.recv(), Ok(Ok(())));
            idle.write(base, &[1; 8]).unwrap();
            // The work of another session is this test's clock: long enough for a poller to come to rest.
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
