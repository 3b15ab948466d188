//! Tests of the admission window and of custom policies.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rdmabox::{
    BatchMode, Failed, Op, ProviderKind, RemoteAddr, Session,
    admission::{AdmissionPolicy, LatencyWindow, LatencyWindowOptions},
    provider::model::{CardParameters, ModelledCard, Timing},
};

use super::{offsets, on_each_that_posts_and_cards, on_four_threads, submit};
use crate::support::{Fixture, at, base, on_each_that_posts, pattern, providers};

#[test]
fn the_window_is_never_exceeded() {
    on_each_that_posts_and_cards(|mut f| {
        for &batch in BatchMode::ALL {
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
                            writes.into_iter().for_each(|write| drop(write.wait().unwrap()));
                        }
                    });
                }
            });
            // The window counts the bytes of the session or of its device, which has no other one.
            let (now, peak) = session.in_window();
            assert_eq!((now, session.in_flight().0), (0, 0));
            assert!((4096..=32 * 1024).contains(&peak), "{batch}: {peak}");
        }
    });
}

const MIB: usize = 1 << 20;

/// Runs a test of large requests that are posted: over each provider, and on a modelled card.
fn on_each_with_memory(len: usize, test: impl Fn(Fixture)) {
    let on = |provider, card| {
        let mut f = Fixture::with_memory(provider, len);
        (f.options.direct, f.options.card) = (false, card);
        test(f);
    };
    providers().into_iter().for_each(|provider| on(provider, None));
    on(ProviderKind::Tcp, Some(ModelledCard::new(CardParameters::cx3(), Timing::Counts)));
}

#[test]
fn merged_requests_keep_to_the_window() {
    on_each_with_memory(64 * MIB, |mut f| {
        // A request that is larger than the window goes alone, and is not merged with others.
        f.options.window_bytes = 64 << 10;
        let session = f.connect();
        let base = base(&session);
        let places = offsets(base, (0..64).map(|i| i * MIB));
        let took = submit(&session, true, &places, MIB);
        assert_eq!((took.work_requests, took.merged), (64, 0));
        assert_eq!(session.in_flight(), (0, MIB as u64));
        // Smaller ones merge up to the window.
        let session = f.connect();
        for write in [true, false] {
            let took = submit(&session, write, &offsets(base, (0..64).map(|i| i * 16_384)), 16_384);
            assert_eq!((took.work_requests, took.merged), (16, 48), "{write}");
        }
        let took = submit(&session, true, &offsets(base, (0..6).map(|i| i * 50_000)), 50_000);
        assert_eq!((took.work_requests, took.merged), (6, 0));
        assert_eq!(session.in_flight(), (0, 64 << 10));
    });
}

/// A window of a policy of one's own.
#[derive(Debug)]
struct Window(u64);

impl AdmissionPolicy for Window {
    fn admit(&self, in_flight: u64, request: u64) -> bool {
        in_flight + request <= self.0
    }

    fn window(&self) -> u64 {
        self.0
    }
}

#[test]
fn a_policy_says_up_to_what_length_requests_merge() {
    on_each_that_posts(|mut f| {
        f.options.admission = Some(Arc::new(Window(5 * 4096)));
        let session = f.connect();
        let places = offsets(base(&session), (0..10).map(|i| i * 4096));
        assert_eq!(submit(&session, true, &places, 4096).work_requests, 2);
        assert_eq!(session.in_flight(), (0, 5 * 4096));
    });
}

/// Runs `each` on a thread for each element of `starts` until `over` is set, and returns the
/// outcome of `other`.
fn beside<T>(starts: std::ops::Range<usize>, each: impl Fn(usize) + Sync, other: impl FnOnce() -> T) -> T {
    let over = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (over, each) = (&over, &each);
        for start in starts {
            scope.spawn(move || {
                while over.load(Ordering::SeqCst) == 0 {
                    each(start);
                }
            });
        }
        let outcome = other();
        over.store(1, Ordering::SeqCst);
        outcome
    })
}

#[test]
fn reads_and_writes_do_not_starve_each_other() {
    on_each_that_posts_and_cards(|mut f| {
        f.options.window_bytes = 8192;
        let session = f.connect();
        let base = base(&session);
        for write in [true, false] {
            // Three threads keep the window full in the other direction.
            let other = |thread: usize| match write {
                true => session.read(at(base, thread * 65_536), &mut [0; 4096]).unwrap(),
                false => session.write(at(base, thread * 65_536), &[1; 4096]).unwrap(),
            };
            // The larger request fits only when nothing else is in flight.
            for len in [4096, 8192, 20_000] {
                beside(0..3, other, || {
                    for _ in 0..50 {
                        match write {
                            true => session.write(at(base, 1 << 20), &vec![2; len]).unwrap(),
                            false => session.read(at(base, 1 << 20), &mut vec![0; len]).unwrap(),
                        }
                    }
                });
            }
        }
        assert_eq!(session.in_flight().0, 0);
        assert!(session.in_flight().1 <= 20_480, "{:?}", session.in_flight());
    });
}

/// Starts a request of a page, and the next one in its callback, until `over`. Each callback runs
/// `count`.
fn chain(
    session: &Arc<Session>,
    (write, place): (bool, RemoteAddr),
    over: &Arc<AtomicBool>,
    count: impl Fn() + Send + Clone + 'static,
) {
    let (next, over) = (Arc::clone(session), Arc::clone(over));
    let then = move |outcome: Result<Vec<u8>, Failed<Vec<u8>>>| {
        outcome.unwrap();
        count();
        if !over.load(Ordering::SeqCst) {
            chain(&next, (write, place), &over, count);
        }
    };
    match write {
        true => session.write_then(place, vec![1; 4096], then),
        false => session.read_then(place, vec![0; 4096], then),
    }
}

/// Keeps [`CHAINS`] requests of the other direction waiting, and one of this direction. Returns how
/// many of the former completed between each two of the latter, in ascending order.
fn numbers_that_pass(session: &Arc<Session>, base: RemoteAddr, write: bool) -> Vec<u64> {
    let over = Arc::new(AtomicBool::new(false));
    let others = Arc::new(AtomicU64::new(0));
    let (send, receive) = mpsc::channel();
    session.together(|| {
        for i in 0..CHAINS {
            let others = Arc::clone(&others);
            let count = move || {
                others.fetch_add(1, Ordering::SeqCst);
            };
            chain(session, (!write, at(base, i * 8192)), &over, count);
        }
        let others = Arc::clone(&others);
        // The last ones complete after the receiver has all it asked for.
        let count = move || _ = send.send(others.load(Ordering::SeqCst));
        chain(session, (write, at(base, 1 << 20)), &over, count);
    });
    let totals: Vec<u64> = receive.iter().take(1 + ROUNDS).collect();
    over.store(true, Ordering::SeqCst);
    while session.in_flight().0 > 0 {
        thread::yield_now();
    }
    let mut numbers: Vec<u64> = totals.windows(2).map(|pair| pair[1] - pair[0]).collect();
    numbers.sort_unstable();
    numbers
}

/// Requests of the other direction that wait all the time.
const CHAINS: usize = 16;
const ROUNDS: usize = 200;

/// Catches turns that let requests of one direction pass a waiting one of the other again and
/// again: they do so in nearly all rounds. One round in ten may have more, as the kernel can stop
/// the thread of a callback between two requests while another thread goes on.
#[test]
fn no_request_passes_a_waiting_one_of_the_other_direction_twice() {
    on_each_that_posts_and_cards(|mut f| {
        // Room for two requests.
        (f.options.window_bytes, f.options.queue_pairs) = (8192, 1);
        let session = f.connect();
        let base = base(&session);
        for write in [true, false] {
            let numbers = numbers_that_pass(&session, base, write);
            let (most, largest) = (numbers[ROUNDS * 9 / 10], numbers[ROUNDS - 1]);
            eprintln!("at most {most} pass in nine of ten rounds, {largest} in all, write {write}");
            assert!(most <= CHAINS as u64, "{numbers:?}, write {write}");
        }
        assert!(session.in_window().1 <= 8192, "{:?}", session.in_window());
    });
}

/// Two threads keep more READs under way than the send queue has places, or than the window takes.
/// Lists of other threads need many places at once.
#[test]
fn ordered_lists_do_not_starve_beside_single_requests() {
    const READS: usize = 300;
    for window in [7 << 20, 65_536] {
        on_each_that_posts(|mut f| {
            (f.options.window_bytes, f.options.queue_pairs) = (window, 1);
            // Places come free one by one.
            (f.options.batch, f.options.signal_interval) = (BatchMode::Single, 1);
            let session = f.connect();
            let base = base(&session);
            let over = AtomicBool::new(false);
            let flood = |thread: usize| {
                let start = |i: usize| session.start_read(at(base, (thread * READS + i) * 64), vec![0; 8]);
                let mut under_way: VecDeque<_> = (0..READS).map(start).collect();
                while !over.load(Ordering::SeqCst) {
                    under_way.pop_front().unwrap().wait().unwrap();
                    under_way.push_back(start(under_way.len()));
                }
                under_way.into_iter().for_each(|read| drop(read.wait().unwrap()));
            };
            let lists = |thread: usize| {
                for round in 0..5 {
                    let place = |i: usize| at(base, (1 << 20) + (thread * 64 + i) * 64);
                    let data = [round; 8];
                    let mut list: Vec<_> =
                        (0..64).map(|i| Op::Write { remote: place(i), data: &data }).collect();
                    session.execute(&mut list).unwrap();
                }
            };
            thread::scope(|scope| {
                let (flood, lists) = (&flood, &lists);
                (0..2).for_each(|thread| drop(scope.spawn(move || flood(thread))));
                let lists = [0, 1].map(|thread| scope.spawn(move || lists(thread)));
                let outcomes = lists.map(thread::ScopedJoinHandle::join);
                over.store(true, Ordering::SeqCst);
                outcomes.into_iter().for_each(Result::unwrap);
            });
            assert_eq!(session.in_flight().0, 0);
        });
    }
}

#[test]
fn requests_at_high_addresses_are_not_starved_by_those_at_low_ones() {
    on_each_that_posts(|mut f| {
        (f.options.window_bytes, f.options.queue_pairs) = (4096, 1);
        let session = f.connect();
        let base = base(&session);
        let low = |thread: usize| session.write(at(base, thread * 65_536), &[1; 4096]).unwrap();
        beside(0..3, low, || {
            (0..50).for_each(|_| session.write(at(base, 1 << 20), &[2; 4096]).unwrap());
        });
        assert_eq!(session.in_flight(), (0, 4096));
    });
}

#[test]
fn requests_that_wait_for_the_window_can_still_be_merged() {
    on_each_that_posts(|mut f| {
        (f.options.window_bytes, f.options.queue_pairs) = (4096, 1);
        let session = f.connect();
        let base = base(&session);
        let (send, receive) = mpsc::channel();
        let own = Arc::clone(&session);
        session.write_then(at(base, 1 << 20), vec![1; 8], move |outcome| {
            outcome.unwrap();
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
        started.into_iter().for_each(|write| drop(write.wait().unwrap()));
        let took = session.stats().since(&before);
        assert_eq!((took.work_requests, took.merged, took.write_requests), (2, 3, 5));
        assert!(took.window_waits > 0);
        assert_eq!(session.in_flight().1, 4096);
    });
}

/// A policy that admits one request at a time and records its calls.
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
        assert_eq!((took.work_requests, took.doorbells), (20, 20));
        assert!(took.window_waits > 0 && policy.asked.load(Ordering::SeqCst) > 0);
        submit(&session, false, &[base], 5000);
        session.fetch_add(base, 1).unwrap();
        assert_eq!(session.in_flight(), (0, 8192));
        let expected = std::iter::repeat_n(5000, 21).chain([8]).collect::<Vec<_>>();
        assert_eq!(*policy.completed.lock(), expected);
    });
}

/// A [`LatencyWindow`] that counts its calls.
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
        let mut bounds = LatencyWindowOptions::default();
        (bounds.min, bounds.max) = (2 * PART as u64, 16 * PART as u64);
        (bounds.start, bounds.step) = (4 * PART as u64, PART as u64);
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
                writes.into_iter().for_each(|write| drop(write.wait().unwrap()));
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
