//! Tests of merging and chaining.

use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use rdmabox::{
    Access, BatchMode, CallError, CallsBy, Export, Memory, OwnedOp, Peer, ProviderKind, RemoteAddr, Reply,
    Service, Session,
    provider::model::{CardParameters, ModelledCard, Timing},
    stats::StatsSnapshot,
};

use super::{offsets, on_four_threads, requests_doorbells_merged, submit};
use crate::support::{
    Fixture, addresses, at, base, host, on_each_that_posts, pattern, providers, while_full,
};

#[test]
fn a_request_alone_is_one_work_request_and_one_doorbell() {
    on_each_that_posts(|mut f| {
        for &batch in BatchMode::ALL {
            f.options.batch = batch;
            let session = f.connect();
            let base = base(&session);
            for write in [true, false] {
                assert_eq!(
                    requests_doorbells_merged(&submit(&session, write, &[base], 512)),
                    (1, 1, 0),
                    "{batch}"
                );
            }
        }
    });
}

#[test]
fn each_mode_merges_and_chains_as_specified() {
    const N: u64 = 16;
    on_each_that_posts(|mut f| {
        f.options.queue_pairs = 1;
        for &batch in BatchMode::ALL {
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
                other => panic!("nothing is specified for {other}"),
            };
            for write in [true, false] {
                for (places, expected) in
                    [(&adjacent, adjacent_is), (&disjoint, disjoint_is), (&mixed, mixed_is)]
                {
                    let took = submit(&session, write, places, 256);
                    assert_eq!(requests_doorbells_merged(&took), expected, "{batch} {write}");
                    assert_eq!(took.chain_lengths.iter().sum::<u64>(), took.doorbells);
                }
            }
        }
    });
}

#[test]
fn a_long_run_is_cut_and_spread_over_the_queue_pairs() {
    const PART: usize = 8192;
    on_each_that_posts(|mut f| {
        // A merged request of 64 KiB, and four lists of that length.
        f.options.max_merge_bytes = 64 << 10;
        for (queue_pairs, lists, per_lane) in [(4, 4, 1), (2, 4, 2), (1, 1, 4)] {
            f.options.queue_pairs = queue_pairs;
            for write in [true, false] {
                let session = f.connect();
                let base = base(&session);
                let took = submit(&session, write, &offsets(base, (0..32).map(|i| i * PART)), PART);
                assert_eq!(requests_doorbells_merged(&took), (4, lists, 28), "{queue_pairs}");
                let lanes = session.lanes();
                // Nothing is polled before all lists are posted.
                let posted: Vec<_> = lanes.iter().map(|lane| (lane.work_requests, lane.bytes)).collect();
                assert_eq!(posted, vec![(per_lane, per_lane << 16); queue_pairs]);
            }
        }
    });
}

/// Runs a test over devices whose queue pairs work side by side: RDMA devices, and a modelled card
/// over each other provider.
fn on_each_that_spreads(test: impl Fn(Fixture)) {
    on_each_that_posts(|mut f| {
        if f.address.provider() != ProviderKind::Rdma {
            f.options.card = Some(ModelledCard::new(CardParameters::cx3(), Timing::Counts));
        }
        test(f);
    });
}

/// Submits requests that do not merge over four queue pairs. Returns the doorbells and the work
/// requests of each lane.
fn spread(f: &Fixture, write: bool, count: usize) -> (u64, Vec<u64>) {
    let session = f.connect();
    let base = base(&session);
    let took = submit(&session, write, &offsets(base, (0..count).map(|i| i * 1024)), 512);
    assert_eq!((took.work_requests, took.merged), (count as u64, 0));
    let lanes = session.lanes();
    assert_eq!(lanes.iter().map(|lane| lane.bytes).sum::<u64>(), 512 * count as u64);
    (took.doorbells, lanes.iter().map(|lane| lane.work_requests).collect())
}

/// Catches a batch that leaves three of four queue pairs idle, and a small one that is cut.
#[test]
fn a_large_batch_is_spread_over_the_queue_pairs() {
    on_each_that_spreads(|mut f| {
        for write in [true, false] {
            for small in [2, 4, 7] {
                let (doorbells, mut lanes) = spread(&f, write, small);
                lanes.sort_unstable();
                assert_eq!((doorbells, lanes), (1, vec![0, 0, 0, small as u64]), "{write}");
            }
            for (count, shares) in [(8, [0, 0, 4, 4]), (16, [4; 4]), (200, [50; 4])] {
                let (doorbells, mut lanes) = spread(&f, write, count);
                lanes.sort_unstable();
                let used = shares.iter().filter(|share| **share > 0).count();
                assert_eq!((doorbells, &lanes[..]), (used as u64, &shares[..]), "{write}");
            }
        }
        f.options.queue_pairs = 1;
        assert_eq!(spread(&f, true, 100), (1, vec![100]));
    });
}

/// Catches a batch that wakes the peer once for each lane, though a thread does all the work.
#[test]
fn a_large_batch_stays_together_where_nothing_works_beside_it() {
    on_each_that_posts(|f| {
        if f.address.provider() == ProviderKind::Rdma {
            return;
        }
        for (write, count) in [(true, 32), (false, 32), (true, 100), (false, 100)] {
            let (doorbells, mut lanes) = spread(&f, write, count);
            lanes.sort_unstable();
            assert_eq!((doorbells, lanes), (1, vec![0, 0, 0, count as u64]), "{write}");
        }
    });
}

/// The window admits 64 of the work requests at first. Catches shares of a batch that counts those
/// that wait.
#[test]
fn requests_that_wait_for_the_window_leave_no_lane_idle() {
    on_each_that_spreads(|mut f| {
        f.options.window_bytes = 64 * 4096;
        let session = f.connect();
        let base = base(&session);
        let own = Arc::clone(&session);
        let (send, receive) = mpsc::channel();
        session.write_then(base, vec![0; 8], move |outcome| {
            outcome.unwrap();
            // In a callback nothing is polled, so all places stay taken.
            let lanes = || own.lanes().iter().map(|lane| lane.work_requests).collect::<Vec<_>>();
            let before = lanes();
            let writes: Vec<_> = own
                .together(|| (0..200).map(|i| own.start_write(at(base, i * 8192), vec![1; 4096])).collect());
            let posted = lanes().iter().zip(&before).map(|(now, before)| now - before).collect();
            send.send((posted, writes)).unwrap();
        });
        let (posted, writes): (Vec<u64>, Vec<_>) = receive.recv().unwrap();
        assert_eq!(posted, [16; 4]);
        writes.into_iter().for_each(|write| drop(write.wait().unwrap()));
    });
}

/// Overlapping writes of one submission take effect in order, on whichever lanes they travel.
/// Catches shares of a batch that overtake each other.
#[test]
fn overlapping_requests_of_a_large_batch_keep_their_order() {
    const PART: usize = 1024;
    on_each_that_spreads(|mut f| {
        for &batch in BatchMode::ALL {
            f.options.batch = batch;
            let session = f.connect();
            let base = base(&session);
            for round in 0..10 {
                // Each write covers the second half of the write 40 places before it.
                let data: Vec<Vec<u8>> = (0..160).map(|i| pattern(PART, round + i)).collect();
                let place = |i: usize| i % 40 * 4 * PART + i / 40 * PART / 2;
                let parts: Vec<_> =
                    data.iter().enumerate().map(|(i, data)| (at(base, place(i)), &data[..])).collect();
                session.write_vectored(&parts).unwrap();
                let mut expected = vec![0; 160 * PART];
                for (i, data) in data.iter().enumerate() {
                    expected[place(i)..place(i) + PART].copy_from_slice(data);
                }
                for start in (0..40).map(place) {
                    let mut found = vec![0; PART * 5 / 2];
                    f.memory.read(start, &mut found);
                    assert!(found == expected[start..start + found.len()], "{batch} {round} {start}");
                }
            }
            // Only merging looks for overlaps. Then the batch stays on one lane, and none waits.
            let waits = session.stats().overlap_waits > 0;
            assert_eq!(waits, !matches!(batch, BatchMode::Merge | BatchMode::Hybrid), "{batch}");
        }
    });
}

#[test]
fn table_one() {
    on_each_that_posts(|mut f| {
        let totals: Vec<StatsSnapshot> = BatchMode::ALL
            .iter()
            .map(|&batch| {
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
        assert!(hybrid.work_requests < single.work_requests && merge.work_requests < single.work_requests);
        assert_eq!(
            (doorbell.work_requests, hybrid.work_requests),
            (single.work_requests, merge.work_requests)
        );
        assert!(doorbell.doorbells < single.doorbells && hybrid.doorbells < single.doorbells);
        assert!(totals.iter().all(|s| s.merged + s.work_requests == single.work_requests && s.errors == 0));
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
    fn call(&self, peer: &Peer, _: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
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
        let host = host();
        let memory = Arc::new(Memory::shared("twice", 1 << 16).unwrap());
        let exports = (0..2).map(|_| host.export(&memory, Access::REMOTE_ALL).unwrap()).collect();
        let listen = addresses(provider, dir.path());
        let running = host.listen(&listen, Arc::new(Several(Mutex::new(exports)))).unwrap();
        let address = running.addresses().iter().find(|address| address.provider() == provider).unwrap();
        let session = Session::builder().provider(provider).connect(address).unwrap();
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
                requests_doorbells_merged(&submit(&session, write, &places, 512)),
                (4, 1, 0),
                "{provider}"
            );
        }
        // Each region's own are merged.
        let places = [at(one, 0), at(two, 1024), at(one, 512), at(two, 1536)];
        for write in [true, false] {
            assert_eq!(
                requests_doorbells_merged(&submit(&session, write, &places, 512)),
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
            assert_eq!(requests_doorbells_merged(&took), (3, 1, 61));
        }
        // Half a queue of 256 a doorbell, and a queue's worth a queue pair.
        f.options.queue_pairs = 1;
        let session = f.connect();
        for write in [true, false] {
            let took = submit(&session, write, &offsets(base, (0..300).map(|i| i * 1024)), 512);
            assert_eq!(requests_doorbells_merged(&took), (300, 3, 0));
            assert_eq!((took.chains, took.chain_length_sum), (3, 300));
            assert_eq!((took.chain_lengths[7], took.chain_lengths[6]), (2, 1));
        }
    });
}

#[test]
fn ordered_lists_are_one_chain_in_every_mode() {
    use rdmabox::Op;
    on_each_that_posts(|mut f| {
        for &batch in BatchMode::ALL {
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
            assert_eq!(requests_doorbells_merged(&session.stats().since(&before)), (3, 1, 0), "{batch}");
        }
    });
}

/// A client that writes beyond the end of a file has an ordered list. Its steps are the bytes, the
/// exchange of the size, and a read of the record. Catches lists of several threads with a doorbell
/// each.
#[test]
fn ordered_lists_of_several_threads_share_a_doorbell() {
    const FULL: usize = 4 * 4096;
    on_each_that_posts(|mut f| {
        (f.options.window_bytes, f.options.queue_pairs) = (FULL as u64, 1);
        for &batch in BatchMode::ALL {
            f.options.batch = batch;
            f.memory.write(0, &[0; 4 * 4096]);
            let session = f.connect();
            let base = base(&session);
            let (before, lists) = while_full(&session, at(base, 1 << 20), FULL, move |session| {
                on_four_threads(|i| {
                    let (bytes, size) = (at(base, i * 4096 + 64), at(base, i * 4096));
                    session.start_execute(vec![
                        OwnedOp::Write { remote: bytes, data: pattern(100, i) },
                        OwnedOp::CompareSwap { remote: size, compare: 0, swap: 164, old: 9 },
                        OwnedOp::Read { remote: size, out: vec![0; 164] },
                    ])
                })
            });
            for (i, list) in lists.into_iter().enumerate() {
                let list = list.wait().unwrap();
                let [_, OwnedOp::CompareSwap { old: 0, .. }, OwnedOp::Read { out, .. }] = &list[..] else {
                    panic!("{batch}: {list:?}")
                };
                assert_eq!((&out[..8], &out[64..]), (&164u64.to_ne_bytes()[..], &pattern(100, i)[..]));
            }
            let doorbells = if matches!(batch, BatchMode::Doorbell | BatchMode::Hybrid) { 2 } else { 5 };
            let took = session.stats().since(&before);
            assert_eq!(requests_doorbells_merged(&took), (13, doorbells, 0), "{batch}");
        }
    });
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
        writes.into_iter().for_each(|write| drop(write.wait().unwrap()));
        let took = session.stats().since(&before);
        assert_eq!(requests_doorbells_merged(&took), (2, 2, 3));
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
            let found = read.wait().unwrap();
            assert!(found == pattern(PART, i), "{i}");
        }
        let took = session.stats().since(&before);
        assert_eq!(requests_doorbells_merged(&took), (2, 2, 3));
        assert_eq!((took.read_requests, took.bytes_read), (4, 4 * PART as u64));
        assert_eq!(session.in_flight(), (0, 4 * PART as u64));
    });
}

#[test]
fn adjacent_requests_to_two_hosts_are_never_merged() {
    const PART: usize = 4096;
    on_each_that_posts(|mut f| {
        // Both hosts export the same memory, so requests to one are adjacent to requests to the
        // other.
        let mut g = Fixture::of(f.address.provider(), Arc::clone(&f.memory));
        (f.options.window_bytes, f.options.queue_pairs) = (4 * PART as u64, 1);
        g.options = f.options.clone();
        let sessions = [f.connect(), g.connect()];
        let bases = [base(&sessions[0]), base(&sessions[1])];
        assert_eq!(bases[0].addr, bases[1].addr);
        for write in [true, false] {
            // The sessions alternate while both windows are full. A callback must not wait, so the
            // other session has its own thread.
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
                let bytes = transfer.wait().unwrap();
                assert!(bytes == pattern(PART, i), "{i}");
            }
            for (session, before) in sessions.iter().zip([before_first, before_second]) {
                assert_eq!(requests_doorbells_merged(&session.stats().since(&before)), (4, 2, 0));
            }
        }
    });
}
