//! Tests with fake queue pairs that log operations and connect on demand.

use std::{
    io::Read,
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, Sender, channel},
};

use super::*;
use crate::verbs::{PostError, QpCaps, QpState, RecvWr, Rendezvous, SendWr};

/// Operations in order, each with the number of its queue pair.
type Log = Arc<Mutex<Vec<(&'static str, u32)>>>;
/// Results of the next `connect` calls.
type Results = Arc<Mutex<Receiver<Result<(), VerbsError>>>>;

/// Number of a fake queue pair that its device does not stop.
const STUCK: u32 = 77;

#[derive(Debug)]
struct FakeQp {
    num: u32,
    log: Log,
    /// Receives the number when `connect` is called. `connect` then waits for its result.
    connecting: Sender<u32>,
    results: Results,
    stream: Mutex<Option<Rendezvous>>,
}

impl crate::verbs::Sealed for FakeQp {}

impl QueuePair for FakeQp {
    fn qp_num(&self) -> u32 {
        self.num
    }

    fn state(&self) -> QpState {
        QpState::Init
    }

    fn caps(&self) -> QpCaps {
        QpCaps::default()
    }

    fn connect(&self, stream: Rendezvous, _: Duration) -> Result<(), VerbsError> {
        self.log.lock().push(("connect", self.num));
        *self.stream.lock() = Some(stream);
        self.connecting.send(self.num).unwrap();
        let result = self.results.lock().recv().unwrap();
        self.log.lock().push(("connected", self.num));
        result
    }

    fn post_send(&self, _: &[SendWr<'_>]) -> Result<(), PostError> {
        unreachable!("a host posts nothing on data queue pairs")
    }

    fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        unreachable!("a host posts nothing on data queue pairs")
    }

    fn to_error(&self) {
        self.log.lock().push(("error", self.num));
    }

    fn is_stopped(&self) -> bool {
        self.num != STUCK
    }

    fn is_fenced(&self) -> bool {
        self.num != STUCK
    }
}

impl Drop for FakeQp {
    fn drop(&mut self) {
        self.log.lock().push(("drop", self.num));
    }
}

struct Bench {
    pairs: HostQueuePairs,
    log: Log,
    /// Numbers of queue pairs that are connecting.
    connecting: Mutex<Receiver<u32>>,
    /// Sends the result of a `connect` call.
    decide: Sender<Result<(), VerbsError>>,
    fakes: (Sender<u32>, Results),
}

/// Returns the client's and the host's end of a stream.
fn streams(provider: ProviderKind) -> (Stream, Stream) {
    match provider {
        ProviderKind::Shm => {
            let (a, b) = UnixStream::pair().unwrap();
            (Stream::Unix(a), Stream::Unix(b))
        }
        ProviderKind::Tcp | ProviderKind::Rdma => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let b = listener.accept().unwrap().0;
            match provider {
                ProviderKind::Rdma => (Stream::Rdma(a), Stream::Rdma(b)),
                _ => (Stream::Tcp(a), Stream::Tcp(b)),
            }
        }
    }
}

impl Bench {
    fn new(provider: ProviderKind, data: usize) -> Bench {
        Bench::with(provider, data, false)
    }

    /// Creates a fixture with or without remote fetching.
    fn with(provider: ProviderKind, data: usize, fetch: bool) -> Bench {
        let (connecting_send, connecting) = channel();
        let (decide, results) = channel();
        let pairs = HostQueuePairs::new(provider, data, fetch);
        let fakes = (connecting_send, Arc::new(Mutex::new(results)));
        Bench { pairs, log: Log::default(), connecting: Mutex::new(connecting), decide, fakes }
    }

    /// Creates an open session, and the clients' ends of its streams. Each queue pair's number is
    /// its index.
    fn open(provider: ProviderKind, data: usize) -> (Bench, Vec<Stream>) {
        let bench = Bench::new(provider, data);
        let clients = (0..=data).map(|index| bench.join_now(index, index as u32).unwrap()).collect();
        bench.pairs.open(Instant::now(), || false).unwrap();
        bench.log.lock().clear();
        (bench, clients)
    }

    fn fake(&self, num: u32) -> Arc<dyn QueuePair> {
        let (connecting, results) = self.fakes.clone();
        Arc::new(FakeQp { num, log: Arc::clone(&self.log), connecting, results, stream: Mutex::default() })
    }

    fn discard(&self, qp: &dyn QueuePair) {
        self.log.lock().push(("discard", qp.qp_num()));
    }

    fn join(&self, index: usize, num: u32, stream: Stream) -> Result<(), String> {
        self.pairs.join(index, stream, || Ok(self.fake(num)), |qp| self.discard(qp))
    }

    /// Joins with a `connect` that succeeds at once.
    fn join_now(&self, index: usize, num: u32) -> Result<Stream, String> {
        self.decide.send(Ok(())).unwrap();
        let (client, host) = streams(self.pairs.provider);
        let result = self.join(index, num, host);
        // Removes the result of a join that was refused before `connect`.
        let _ = (self.connecting.lock().try_recv(), self.fakes.1.lock().try_recv());
        result.map(|()| client)
    }

    fn taken(&self) -> Vec<(&'static str, u32)> {
        std::mem::take(&mut *self.log.lock())
    }

    fn until_over(&self) {
        while self.pairs.state.lock().phase != Phase::Over {
            std::thread::yield_now();
        }
    }
}

fn on_each_kind(test: impl Fn(ProviderKind)) {
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        eprintln!("--- {provider}");
        test(provider);
    }
}

fn ended(mut client: Stream) {
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn the_old_queue_pair_is_in_err_and_dropped_before_its_replacement_connects() {
    on_each_kind(|provider| {
        let (bench, mut clients) = Bench::open(provider, 2);
        drop(clients.remove(1));
        drop(bench.join_now(1, 11).unwrap());
        // A failed attempt leaves the index to the next stream.
        bench.decide.send(Err(VerbsError::PeerGone)).unwrap();
        let (_client, host) = streams(provider);
        assert_eq!(bench.join(1, 21, host).unwrap_err(), VerbsError::PeerGone.to_string());
        bench.connecting.lock().recv().unwrap();
        let _client = bench.join_now(1, 31).unwrap();
        assert_eq!(
            bench.taken(),
            [
                ("error", 1),
                ("drop", 1),
                ("connect", 11),
                ("connected", 11),
                ("error", 11),
                ("drop", 11),
                ("connect", 21),
                ("connected", 21),
                ("error", 21),
                ("error", 21),
                ("drop", 21),
                ("connect", 31),
                ("connected", 31)
            ]
        );
    });
}

#[test]
fn a_session_opens_when_every_queue_pair_has_joined_once() {
    on_each_kind(|provider| {
        let bench = Bench::new(provider, 1);
        let timed_out = "the client did not connect all its queue pairs";
        assert_eq!(bench.pairs.open(Instant::now(), || false).unwrap_err(), timed_out);
        let _calls = bench.join_now(0, 0).unwrap();
        assert_eq!(bench.pairs.open(Instant::now(), || false).unwrap_err(), timed_out);
        let _data = bench.join_now(1, 1).unwrap();
        bench.pairs.open(Instant::now(), || false).unwrap();
        assert!(!bench.pairs.fail("too late for that"));
        let _again = bench.join_now(0, 2).unwrap_err();
    });
}

#[test]
fn a_fence_waits_for_clients_with_mapped_memory_until_they_confirm_or_are_gone() {
    on_each_kind(|provider| {
        let bench = Bench::new(provider, 2);
        let _calls = bench.join_now(0, 0).unwrap();
        let _first = bench.join_now(1, 1).unwrap();
        assert!(bench.pairs.await_fences(Instant::now()));
        let second = bench.join_now(2, STUCK).unwrap();
        let maps = provider == ProviderKind::Shm;
        assert_eq!(bench.pairs.await_fences(Instant::now()), !maps);
        drop(second);
        assert!(bench.pairs.await_fences(Instant::now() + Duration::from_secs(3600)));
    });
}

#[test]
fn a_session_does_not_wait_for_a_gone_client() {
    on_each_kind(|provider| {
        let bench = Bench::new(provider, 1);
        let _calls = bench.join_now(0, 0).unwrap();
        let never = Instant::now() + Duration::from_secs(3600);
        let gone = "the client closed the session before all its queue pairs were connected";
        assert_eq!(bench.pairs.open(never, || true).unwrap_err(), gone);
        // A client that has joined all queue pairs may be gone.
        let bench = Bench::new(provider, 1);
        let _both = [0, 1].map(|index| bench.join_now(index, index as u32).unwrap());
        bench.pairs.open(never, || true).unwrap();
    });
}

#[test]
fn any_error_while_a_session_is_made_fails_it() {
    on_each_kind(|provider| {
        type Attempt = fn(&Bench) -> String;
        let wrong: [(&str, Attempt); 5] = [
            ("its session has no queue pair 3", |bench| bench.join_now(3, 9).unwrap_err()),
            ("the queue pair for deferred replies joins an open session only", |bench| {
                bench.join_now(2, 9).unwrap_err()
            }),
            ("queue pair 1 is joined twice while its session is made", |bench| {
                bench.join_now(1, 9).unwrap_err()
            }),
            ("queue pair 0 joins over another kind of socket", |bench| {
                let other = match bench.pairs.provider {
                    ProviderKind::Shm => ProviderKind::Tcp,
                    ProviderKind::Tcp => ProviderKind::Rdma,
                    ProviderKind::Rdma => ProviderKind::Shm,
                };
                bench.join(0, 9, streams(other).1).unwrap_err()
            }),
            ("asked to", |bench| {
                assert!(bench.pairs.fail("asked to"));
                "asked to".into()
            }),
        ];
        for (reason, go_wrong) in wrong {
            let bench = Bench::new(provider, 1);
            let client = bench.join_now(1, 1).unwrap();
            assert_eq!(go_wrong(&bench), reason);
            assert_eq!(bench.pairs.open(Instant::now(), || false).unwrap_err(), reason);
            assert_eq!(bench.join_now(0, 0).unwrap_err(), "its session is over");
            drop(client);
            bench.pairs.close().end().unwrap();
            assert_eq!(bench.taken().last(), Some(&("drop", 1)));
        }
    });
}

#[test]
fn a_refused_stream_does_not_change_an_open_session() {
    on_each_kind(|provider| {
        let (bench, _clients) = Bench::open(provider, 2);
        for (index, reason) in [
            (0, "the queue pair for calls lasts as long as its session"),
            (4, "its session has no queue pair 4"),
            (usize::MAX, "its session has no queue pair 18446744073709551615"),
        ] {
            assert_eq!(bench.join_now(index, 9).unwrap_err(), reason);
        }
        let other = if provider == ProviderKind::Shm { ProviderKind::Tcp } else { ProviderKind::Shm };
        assert_eq!(
            bench.join(1, 9, streams(other).1).unwrap_err(),
            "queue pair 1 joins over another kind of socket"
        );
        assert_eq!(bench.taken(), []);
    });
}

#[test]
fn the_queue_pair_for_deferred_replies_joins_once_and_ends_with_the_session() {
    on_each_kind(|provider| {
        let (bench, clients) = Bench::open(provider, 2);
        assert_eq!(
            [0, 1, 2, 3].map(|i| bench.pairs.role(i)),
            [Role::Calls, Role::Data, Role::Data, Role::DeferredReplies]
        );
        let deferred = bench.join_now(3, 3).unwrap();
        assert_eq!(bench.join_now(3, 9).unwrap_err(), "the queue pair for deferred replies is joined once");
        drop((clients, deferred));
        let closed = bench.pairs.close();
        assert_eq!(closed.messages().map(|qp| qp.qp_num()).collect::<Vec<_>>(), [0, 3]);
        closed.end().unwrap();
        assert!(bench.taken().contains(&("error", 3)));
    });
}

#[test]
fn the_queue_pair_for_remote_fetching_joins_with_the_others_and_lasts_as_long_as_the_session() {
    on_each_kind(|provider| {
        let bench = Bench::with(provider, 1, true);
        assert_eq!(
            [0, 1, 2, 3].map(|index| bench.pairs.role(index)),
            [Role::Calls, Role::Data, Role::DeferredReplies, Role::Fetch]
        );
        let calls_and_data = [0, 1].map(|index| bench.join_now(index, index as u32).unwrap());
        assert!(bench.pairs.open(Instant::now(), || false).is_err());
        let fetch = bench.join_now(3, 3).unwrap();
        bench.pairs.open(Instant::now(), || false).unwrap();
        let lasts = "the queue pair for remote fetching lasts as long as its session";
        assert_eq!(bench.join_now(3, 9).unwrap_err(), lasts);
        drop(calls_and_data);
        // The host does not wait for the release of call memory.
        let closed = bench.pairs.close();
        assert!(closed.is_released());
        closed.end().unwrap();
        assert!(bench.taken().contains(&("error", 3)));
        drop(fetch);
    });
}

#[test]
fn without_remote_fetching_there_is_no_queue_pair_for_it() {
    let bench = Bench::new(ProviderKind::Tcp, 1);
    assert_eq!(bench.join_now(3, 3).unwrap_err(), "its session has no queue pair 3");
}

#[test]
fn one_stream_at_a_time_joins_an_index_and_one_more_waits() {
    on_each_kind(|provider| {
        let (bench, mut clients) = Bench::open(provider, 2);
        drop(clients.remove(1));
        let ((first, host_first), (_second, host_second)) = (streams(provider), streams(provider));
        std::thread::scope(|scope| {
            let joined = scope.spawn(|| bench.join(1, 11, host_first));
            assert_eq!(bench.connecting.lock().recv().unwrap(), 11);
            let waiting = scope.spawn(|| bench.join(1, 12, host_second));
            while !bench.pairs.state.lock().entries[1].waiting {
                std::thread::yield_now();
            }
            for _ in 0..100 {
                let refused = bench.join(1, 13, streams(provider).1).unwrap_err();
                assert_eq!(refused, "two streams are joining as queue pair 1 already");
            }
            drop(first);
            bench.decide.send(Ok(())).unwrap();
            bench.decide.send(Ok(())).unwrap();
            joined.join().unwrap().unwrap();
            waiting.join().unwrap().unwrap();
        });
        let log = bench.taken();
        let (first, second) = log.split_at(4);
        assert_eq!(first, [("error", 1), ("drop", 1), ("connect", 11), ("connected", 11)]);
        assert_eq!(second, [("error", 11), ("drop", 11), ("connect", 12), ("connected", 12)]);
        assert!(!bench.pairs.state.lock().entries[1].waiting);
    });
}

#[test]
fn a_waiting_stream_is_refused_when_the_session_ends() {
    on_each_kind(|provider| {
        let (bench, clients) = Bench::open(provider, 1);
        drop(clients);
        std::thread::scope(|scope| {
            let (_first, host_first) = streams(provider);
            let joining = scope.spawn(|| bench.join(1, 11, host_first));
            bench.connecting.lock().recv().unwrap();
            let (_second, host_second) = streams(provider);
            let waiting = scope.spawn(|| bench.join(1, 12, host_second));
            while !bench.pairs.state.lock().entries[1].waiting {
                std::thread::yield_now();
            }
            let end = scope.spawn(|| bench.pairs.close().end());
            assert_eq!(waiting.join().unwrap().unwrap_err(), "its session is over");
            bench.decide.send(Err(VerbsError::PeerGone)).unwrap();
            joining.join().unwrap().unwrap_err();
            end.join().unwrap().unwrap();
        });
    });
}

#[test]
fn a_closed_stream_replaces_nothing() {
    on_each_kind(|provider| {
        let (bench, _clients) = Bench::open(provider, 1);
        let (client, host) = streams(provider);
        drop(client);
        while !host.is_over() {
            std::thread::yield_now();
        }
        assert_eq!(
            bench.join(1, 11, host).unwrap_err(),
            "the client closed the stream before it joined as queue pair 1"
        );
        assert_eq!(bench.taken(), []);
    });
}

#[test]
fn the_end_waits_for_a_joining_stream_and_ends_its_queue_pair() {
    on_each_kind(|provider| {
        let (bench, clients) = Bench::open(provider, 1);
        drop(clients);
        let (client, host) = streams(provider);
        std::thread::scope(|scope| {
            let join = scope.spawn(|| bench.join(1, 11, host));
            assert_eq!(bench.connecting.lock().recv().unwrap(), 11);
            let end = scope.spawn(|| {
                let closed = bench.pairs.close();
                bench.log.lock().push(("closed", 0));
                closed.end()
            });
            // The end makes an unresponsive client give up.
            ended(client);
            bench.until_over();
            bench.decide.send(Ok(())).unwrap();
            join.join().unwrap().unwrap();
            end.join().unwrap().unwrap();
        });
        let log = bench.taken();
        let at = |what| log.iter().position(|entry| *entry == what).unwrap();
        assert!(at(("connected", 11)) < at(("closed", 0)), "{log:?}");
        assert!(at(("closed", 0)) < at(("error", 11)), "{log:?}");
        assert_eq!(bench.join_now(1, 12).unwrap_err(), "its session is over");
    });
}

#[test]
fn a_queue_pair_made_after_the_end_has_begun_is_never_connected() {
    on_each_kind(|provider| {
        let (bench, clients) = Bench::open(provider, 1);
        drop(clients);
        // In case the queue pair is connected nevertheless.
        bench.decide.send(Ok(())).unwrap();
        std::thread::scope(|scope| {
            let mut end = None;
            let (_client, host) = streams(provider);
            let make = || {
                end = Some(scope.spawn(|| bench.pairs.close().end()));
                bench.until_over();
                Ok(bench.fake(11))
            };
            let result = bench.pairs.join(1, host, make, |qp| bench.discard(qp));
            assert_eq!(result.unwrap_err(), "its session has ended meanwhile");
            end.unwrap().join().unwrap().unwrap();
        });
        let new: Vec<_> = bench.taken().into_iter().filter(|(_, num)| *num == 11).collect();
        assert_eq!(new, [("discard", 11), ("drop", 11)]);
    });
}

#[test]
fn a_queue_pair_made_after_the_session_failed_is_discarded() {
    on_each_kind(|provider| {
        for index in [0, 1] {
            let bench = Bench::new(provider, 1);
            let (_client, host) = streams(provider);
            let make = || {
                assert!(bench.pairs.fail("another stream went wrong"));
                Ok(bench.fake(11))
            };
            let result = bench.pairs.join(index, host, make, |qp| bench.discard(qp));
            assert_eq!(result.unwrap_err(), "its session has ended meanwhile");
            // The session's end must not find the queue pair.
            assert_eq!(bench.pairs.close().messages().count(), 0);
            assert_eq!(bench.taken(), [("discard", 11), ("drop", 11)]);
        }
    });
}

#[test]
fn a_client_with_mapped_memory_closes_the_old_stream_before_it_gets_a_replacement() {
    let (bench, mut clients) = Bench::open(ProviderKind::Shm, 2);
    let mut old = clients.remove(1);
    assert_eq!(
        bench.join_now(1, 11).unwrap_err(),
        "the client has not released the queue pair 1 that is to be replaced"
    );
    assert_eq!(bench.taken(), []);
    // The client was asked, and may release it later.
    assert_eq!(old.read(&mut [0]).unwrap(), 0);
    drop(old);
    let new = bench.join_now(1, 12).unwrap();
    assert_eq!(bench.taken(), [("error", 1), ("drop", 1), ("connect", 12), ("connected", 12)]);
    // The end waits for exactly the current queue pairs.
    std::thread::scope(|scope| {
        let end = scope.spawn(|| bench.pairs.close().end());
        ended(new);
        ended(clients.pop().unwrap());
        end.join().unwrap().unwrap();
    });
}

#[test]
fn the_end_interrupts_a_replacement_that_waits_for_a_release() {
    let (bench, mut clients) = Bench::open(ProviderKind::Shm, 1);
    let mut old = clients.pop().unwrap();
    let (_client, host) = streams(ProviderKind::Shm);
    std::thread::scope(|scope| {
        let join = scope.spawn(|| bench.join(1, 11, host));
        // The host has asked the client to release it.
        assert_eq!(old.read(&mut [0]).unwrap(), 0);
        let closed = bench.pairs.close();
        assert_eq!(
            join.join().unwrap().unwrap_err(),
            "the client has not released the queue pair 1 that is to be replaced"
        );
        // Now the end of the session waits for the release.
        drop(old);
        closed.end().unwrap();
    });
    assert!(!bench.taken().iter().any(|(what, num)| *what == "connect" && *num == 11));
}

#[test]
fn over_tcp_the_end_waits_for_no_release() {
    let (bench, _clients) = Bench::open(ProviderKind::Tcp, 1);
    let _new = bench.join_now(1, 11).unwrap();
    bench.taken();
    // All clients are still there, and close nothing.
    bench.pairs.close().end().unwrap();
    assert_eq!(bench.taken(), [("error", 0), ("error", 11), ("drop", 0), ("drop", 11)]);
}

#[test]
fn queue_pairs_of_an_unresponsive_client_end_after_its_release() {
    let (bench, clients) = Bench::open(ProviderKind::Shm, 2);
    bench.taken();
    let closed = bench.pairs.close().end().unwrap_err();
    // Ending them would close the host's sockets, which would make a gone client look present.
    assert_eq!(bench.taken(), []);
    assert!(!closed.is_released());
    drop(clients);
    while !closed.is_released() {
        std::thread::yield_now();
    }
    closed.force();
    assert_eq!(bench.taken()[..3], [("error", 0), ("error", 1), ("error", 2)]);
}

#[test]
fn a_queue_pair_that_does_not_stop_is_reported() {
    for (number, stops) in [(STUCK, false), (11, true)] {
        let (bench, _clients) = Bench::open(ProviderKind::Tcp, 1);
        let _new = bench.join_now(1, number).unwrap();
        assert!(bench.pairs.close().end().is_ok_and(|stopped| stopped == stops));
    }
}
