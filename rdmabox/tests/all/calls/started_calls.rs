//! Tests of started calls on every provider. Each call is executed and reported once, the calls
//! leave room for other calls, and the session ends if a call is unanswered.

use std::{
    collections::HashSet,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{addresses, process::HostProcess, providers};
use parking_lot::Mutex;
use rdmabox::{
    CallError, Host, HostHandle, MAX_CALL, Peer, PendingReply, ProviderKind, Reply, RequestError, Service,
    Session, SessionOptions, StartedReply,
};

/// Calls that can be under way.
const PLACES: usize = 8;

type Outcome = Result<Vec<u8>, RequestError>;

/// Echoes requests that begin with `now`, after its `gate` opens if the request is [`BUSY`].
/// Defers the reply to any other request.
#[derive(Debug)]
struct Owing {
    debts: Mutex<Sender<(Vec<u8>, PendingReply)>>,
    calls: Arc<AtomicU64>,
    gate: Arc<Mutex<()>>,
    /// At the gate.
    busy: Arc<AtomicBool>,
}

const BUSY: &[u8] = b"now, after the gate";

impl Service for Owing {
    fn call(&self, _: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if request == BUSY {
            self.busy.store(true, Ordering::SeqCst);
            drop(self.gate.lock());
        }
        match request.starts_with(b"now") {
            true => reply.extend_from_slice(request),
            // A test that does not care has gone.
            false => drop(self.debts.lock().send((request.to_vec(), reply.defer()))),
        }
        Ok(())
    }
}

struct Fixture {
    debts: Receiver<(Vec<u8>, PendingReply)>,
    /// That the service has seen.
    calls: Arc<AtomicU64>,
    gate: Arc<Mutex<()>>,
    busy: Arc<AtomicBool>,
    outcomes: Receiver<Outcome>,
    running: HostHandle,
    session: Arc<Session>,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new(provider: ProviderKind, timeout: Duration, then: impl Fn() + Send + Sync + 'static) -> Fixture {
        let _ = env_logger::builder().is_test(true).try_init();
        let dir = tempfile::tempdir().unwrap();
        let (send, debts) = mpsc::channel();
        let (calls, gate, busy) = (Arc::default(), Arc::default(), Arc::default());
        let service = Owing {
            debts: Mutex::new(send),
            calls: Arc::clone(&calls),
            gate: Arc::clone(&gate),
            busy: Arc::clone(&busy),
        };
        let listen = addresses(provider, dir.path());
        let running = Host::new().unwrap().listen(&listen, Arc::new(service)).unwrap();
        let address = running.addresses().iter().find(|address| address.provider() == provider).unwrap();
        let (options, outcomes) = options(provider, timeout, then);
        let session = Session::connect(address, &options).unwrap();
        Fixture { debts, calls, gate, busy, outcomes, running, session, _dir: dir }
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.outcomes.try_iter().collect()
    }
}

/// Returns options of a session, and the outcomes of its started calls. `then` runs after each
/// outcome.
fn options(
    provider: ProviderKind,
    operation_timeout: Duration,
    then: impl Fn() + Send + Sync + 'static,
) -> (SessionOptions, Receiver<Outcome>) {
    let (send, outcomes) = mpsc::channel();
    let send = Mutex::new(send);
    let sink = move |outcome: Result<&[u8], RequestError>| {
        send.lock().send(outcome.map(<[u8]>::to_vec)).unwrap();
        then();
    };
    let options = Session::builder()
        .provider(provider)
        .connect_timeout(LONG)
        .operation_timeout(operation_timeout)
        .started_reply(StartedReply::new(sink))
        .into_options();
    (options, outcomes)
}

const LONG: Duration = Duration::from_secs(60);

fn on_each_provider(test: impl Fn(Fixture)) {
    for provider in providers() {
        eprintln!("--- {provider}");
        test(Fixture::new(provider, LONG, || {}));
    }
}

fn call(session: &Session, request: &[u8]) -> Outcome {
    let mut reply = Vec::new();
    session.call(request, &mut reply).map(|()| reply)
}

#[test]
fn each_started_call_is_executed_and_reported_once() {
    on_each_provider(|f| {
        let requests: Vec<Vec<u8>> = (0..20 * PLACES).map(|i| format!("now {i}").into_bytes()).collect();
        requests.iter().for_each(|request| f.session.start_call(request).unwrap());
        f.session.finish_calls().unwrap();
        assert_eq!(f.calls.load(Ordering::SeqCst), requests.len() as u64);
        let mut expected: Vec<Outcome> = requests.into_iter().map(Ok).collect();
        let mut found = f.outcomes();
        found.sort_by_key(|outcome| outcome.clone().unwrap());
        expected.sort_by_key(|outcome| outcome.clone().unwrap());
        assert_eq!(found, expected);
        let stats = f.session.stats();
        assert_eq!((stats.calls, stats.calls_started, stats.errors), (20 * PLACES as u64, stats.calls, 0));
        // Nothing is under way.
        f.session.finish_calls().unwrap();
    });
}

#[test]
fn a_reply_may_come_late_and_a_later_call_finds_what_was_answered_before_it() {
    on_each_provider(|f| {
        for name in [b"a", b"b", b"c"] {
            f.session.start_call(name).unwrap();
        }
        let debts: Vec<_> = f.debts.iter().take(3).collect();
        let answer = |(name, debt): (Vec<u8>, PendingReply)| match &name[..] {
            b"b" => Err(RequestError::Unanswered),
            _ => {
                debt.answer(&name.repeat(2));
                Ok(name.repeat(2))
            }
        };
        let expected: Vec<Outcome> = debts.into_iter().map(answer).collect();
        assert_eq!(call(&f.session, b"now"), Ok(b"now".into()));
        // In any order.
        let sorted = |mut outcomes: Vec<Outcome>| {
            outcomes.sort_by_key(|outcome| outcome.clone().ok());
            outcomes
        };
        let mut found = f.outcomes();
        if f.session.provider() == ProviderKind::Shm {
            // A host that was notified of a call that it had found itself reports that the answer
            // is in memory.
            f.session.finish_calls().unwrap();
            found.extend(f.outcomes());
        }
        assert_eq!(sorted(found), sorted(expected));
        f.session.finish_calls().unwrap();
        assert!(f.session.is_connected());
    });
}

#[test]
fn unanswered_calls_leave_room_for_others_and_a_further_one_waits() {
    on_each_provider(|f| {
        thread::scope(|scope| {
            (0..PLACES).for_each(|i| f.session.start_call(&[i as u8]).unwrap());
            let mut debts: Vec<_> = f.debts.iter().take(PLACES).collect();
            let more = scope.spawn(|| f.session.start_call(b"more"));
            let callers: Vec<_> = (0..2 * PLACES)
                .map(|_| {
                    scope.spawn(|| {
                        (0..20).for_each(|_| assert_eq!(call(&f.session, b"now"), Ok(b"now".into())))
                    })
                })
                .collect();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            assert!(!more.is_finished() && f.debts.try_recv().is_err());
            debts.pop().unwrap().1.answer(b"");
            more.join().unwrap().unwrap();
            debts.push(f.debts.recv().unwrap());
            assert_eq!(debts.last().unwrap().0, b"more");
            let finish = scope.spawn(|| f.session.finish_calls());
            for (_, debt) in debts {
                assert!(!finish.is_finished());
                debt.answer(b"");
            }
            finish.join().unwrap().unwrap();
        });
    });
}

#[test]
fn many_threads_start_call_and_finish_side_by_side() {
    on_each_provider(|f| {
        const THREADS: usize = 4;
        const ROUNDS: usize = 200;
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let session = &f.session;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let request = format!("now {thread} {round}").into_bytes();
                        match round % 10 {
                            3 => assert_eq!(call(session, &request), Ok(request)),
                            7 => session.finish_calls().unwrap(),
                            _ => session.start_call(&request).unwrap(),
                        }
                    }
                });
            }
        });
        f.session.finish_calls().unwrap();
        let found = f.outcomes();
        assert_eq!(found.len(), THREADS * ROUNDS * 8 / 10);
        assert_eq!(
            found.into_iter().map(Result::unwrap).collect::<HashSet<_>>().len(),
            THREADS * ROUNDS * 8 / 10
        );
    });
}

/// Catches a started call that goes as a message where memory would do.
#[test]
fn over_shared_memory_started_calls_send_messages_only_to_notify() {
    let f = Fixture::new(ProviderKind::Shm, LONG, || {});
    for round in 0..500 {
        (0..=round % PLACES).for_each(|_| f.session.start_call(b"now").unwrap());
        assert_eq!(call(&f.session, b"now"), Ok(b"now".into()));
    }
    f.session.finish_calls().unwrap();
    let stats = f.session.stats();
    assert_eq!((stats.calls, stats.errors), (f.calls.load(Ordering::SeqCst), 0));
    assert_eq!(f.outcomes().len() as u64, stats.calls_started);
    assert_eq!(stats.call_messages, stats.calls_rung);
    assert!(stats.calls_fetched + stats.calls_rung >= stats.calls, "{stats:?}");
}

#[test]
fn finish_calls_waits_only_for_calls_started_before() {
    on_each_provider(|f| {
        f.session.start_call(b"first").unwrap();
        let (_, first) = f.debts.recv().unwrap();
        thread::scope(|scope| {
            let polls = f.session.stats().polls;
            let finish = scope.spawn(|| f.session.finish_calls());
            // It has looked around before it polls.
            while f.session.stats().polls == polls {
                thread::yield_now();
            }
            f.session.start_call(b"second").unwrap();
            let (_, second) = f.debts.recv().unwrap();
            first.answer(b"");
            finish.join().unwrap().unwrap();
            assert_eq!(f.outcomes(), [Ok(vec![])]);
            second.answer(b"2");
        });
        f.session.finish_calls().unwrap();
        assert_eq!(f.outcomes(), [Ok(b"2".into())]);
    });
}

#[test]
fn closing_a_session_waits_for_its_started_calls() {
    on_each_provider(|f| {
        (0..2 * PLACES).for_each(|_| f.session.start_call(b"now").unwrap());
        f.session.close(LONG);
        assert_eq!(f.calls.load(Ordering::SeqCst), 2 * PLACES as u64);
        assert_eq!(f.outcomes(), vec![Ok(b"now".to_vec()); 2 * PLACES]);
        assert_eq!(f.session.start_call(b"now"), Err(RequestError::Disconnected));
        // Nothing was lost.
        assert_eq!(f.session.finish_calls(), Ok(()));
    });
}

#[test]
fn closing_waits_for_started_calls_only_up_to_its_limit() {
    on_each_provider(|f| {
        f.session.start_call(b"x").unwrap();
        let owed = f.debts.recv().unwrap();
        let began = Instant::now();
        f.session.close(Duration::from_millis(20));
        assert!(began.elapsed() < LONG / 2);
        assert_eq!(f.outcomes(), [Err(RequestError::Disconnected)]);
        drop(owed);
    });
}

#[test]
fn dropping_a_session_does_not_wait_for_started_calls() {
    on_each_provider(|f| {
        let Fixture { debts, outcomes, session, running, .. } = f;
        session.start_call(b"x").unwrap();
        let owed = debts.recv().unwrap();
        let began = Instant::now();
        drop(session);
        assert!(began.elapsed() < LONG / 2);
        assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), [Err(RequestError::Disconnected)]);
        drop((owed, running));
    });
}

#[test]
fn a_stopped_host_leaves_started_calls_unanswered() {
    on_each_provider(|f| {
        let Fixture { debts, outcomes, running, session, .. } = f;
        (0..PLACES).for_each(|_| session.start_call(b"x").unwrap());
        thread::scope(|scope| {
            let waiting =
                [scope.spawn(|| session.start_call(b"more")), scope.spawn(|| session.finish_calls())];
            let owed: Vec<_> = debts.iter().take(PLACES).collect();
            drop(running);
            for one in waiting {
                assert_eq!(one.join().unwrap(), Err(RequestError::Disconnected));
            }
            drop(owed);
        });
        let lost: Vec<Outcome> = outcomes.try_iter().collect();
        assert_eq!(lost, vec![Err(RequestError::Disconnected); PLACES]);
        assert_eq!(session.finish_calls(), Err(RequestError::Disconnected));
        assert_eq!(session.start_call(b"now"), Err(RequestError::Disconnected));
        assert!(!session.is_connected());
    });
}

#[test]
fn a_killed_host_leaves_started_calls_unanswered() {
    for provider in providers() {
        let host = HostProcess::start(provider);
        let (options, outcomes) = options(provider, LONG, || {});
        let session = Session::connect(&host.address, &options).unwrap();
        host.stop();
        (0..3).for_each(|_| session.start_call(b"any").unwrap());
        host.kill();
        assert_eq!(session.finish_calls(), Err(RequestError::Disconnected), "{provider}");
        let lost: Vec<Outcome> = outcomes.try_iter().collect();
        assert_eq!(lost, vec![Err(RequestError::Disconnected); 3], "{provider}");
    }
}

#[test]
fn a_host_that_does_not_answer_in_time_ends_the_session() {
    const SHORT: Duration = Duration::from_millis(200);
    type Wait = fn(&Session) -> Result<(), RequestError>;
    let waits: [Wait; 2] =
        [Session::finish_calls, |session| (0..=PLACES).try_for_each(|_| session.start_call(b"x"))];
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        for wait in waits {
            let f = Fixture::new(provider, SHORT, || {});
            f.session.start_call(b"x").unwrap();
            assert_eq!(wait(&f.session), Err(RequestError::Timeout(SHORT)));
            assert!(!f.session.is_connected());
            assert!(f.outcomes().into_iter().all(|outcome| outcome == Err(RequestError::Disconnected)));
        }
        // No thread polls until the next call, which may be answered. Over shared memory that call
        // notifies the host of the started one, which restarts its timeout.
        let f = Fixture::new(provider, SHORT, || {});
        f.session.start_call(b"x").unwrap();
        thread::sleep(2 * SHORT);
        let looks = if provider == ProviderKind::Shm { 2 } else { 1 };
        for left in (0..looks).rev() {
            assert!(f.session.is_connected());
            let result = call(&f.session, b"now");
            // The second, if the machine is too slow for it.
            assert!([Ok(b"now".to_vec()), Err(RequestError::Timeout(SHORT))].contains(&result), "{result:?}");
            if left > 0 && f.session.is_connected() {
                thread::sleep(2 * SHORT);
            } else {
                break;
            }
        }
        assert!(!f.session.is_connected());
        assert_eq!(f.outcomes(), [Err(RequestError::Disconnected)]);
    }
}

#[test]
fn the_outcome_callback_may_panic_and_must_not_wait() {
    for provider in providers() {
        let tried = Arc::new(OnceLock::<Weak<Session>>::new());
        let session = Arc::clone(&tried);
        let f = Fixture::new(provider, LONG, move || {
            let Some(session) = session.get().and_then(Weak::upgrade) else { return };
            let refused = |result| matches!(result, Err(RequestError::Invalid(_)));
            assert!(refused(call(&session, b"now").map(drop)));
            assert!(refused(session.start_call(b"now")));
            assert!(refused(session.finish_calls()));
            panic!("on purpose");
        });
        tried.set(Arc::downgrade(&f.session)).unwrap();
        (0..3).for_each(|_| f.session.start_call(b"now").unwrap());
        f.session.finish_calls().unwrap();
        assert_eq!((f.outcomes().len(), f.calls.load(Ordering::SeqCst)), (3, 3));
        assert!(matches!(f.session.start_call(&[0; MAX_CALL + 1]), Err(RequestError::Invalid(_))));
        assert_eq!(call(&f.session, b"now"), Ok(b"now".into()));
        assert_eq!(f.session.stats().calls_started, 3);
    }
}

/// Starts a call of which no message goes out, as the host is awake.
fn leave_one(session: &Session) {
    loop {
        let notified = session.stats().calls_rung;
        call(session, b"now").unwrap();
        let awake = session.stats().calls_rung == notified;
        session.start_call(b"now").unwrap();
        if awake && session.stats().calls_rung == notified {
            return;
        }
        session.finish_calls().unwrap();
    }
}

/// Makes one thread collect the answer to a started call and block in the outcome callback. Runs
/// `meanwhile` on this thread.
fn while_an_answer_is_taken(
    session: &Session,
    (taken, gate): (&AtomicU64, &Mutex<()>),
    meanwhile: impl FnOnce(),
) {
    let (held, before) = (gate.lock(), taken.load(Ordering::SeqCst));
    thread::scope(|scope| {
        let taker = scope.spawn(|| {
            while taken.load(Ordering::SeqCst) == before {
                call(session, b"now").unwrap();
            }
        });
        while taken.load(Ordering::SeqCst) == before {
            thread::yield_now();
        }
        meanwhile();
        drop(held);
        taker.join().unwrap();
    });
}

/// Returns a session over shared memory whose outcome callback counts, and blocks on a gate.
fn with_slow_outcomes(timeout: Duration) -> (Fixture, Arc<AtomicU64>, Arc<Mutex<()>>) {
    let (taken, gate) = (Arc::<AtomicU64>::default(), Arc::<Mutex<()>>::default());
    let (counts, waits) = (Arc::clone(&taken), Arc::clone(&gate));
    let f = Fixture::new(ProviderKind::Shm, timeout, move || {
        counts.fetch_add(1, Ordering::SeqCst);
        drop(waits.lock());
    });
    (f, taken, gate)
}

/// Another thread collects the awaited answer from memory. Catches a waiter that is only
/// unparked, which does not end its sleep on the completion queue.
#[test]
fn a_sleeping_waiter_is_woken_for_an_answer_that_another_thread_finds_in_memory() {
    let (f, taken, gate) = with_slow_outcomes(60 * LONG);
    leave_one(&f.session);
    let (finished, finishing) = mpsc::channel();
    while_an_answer_is_taken(&f.session, (&taken, &gate), || {
        let (session, sleeps) = (Arc::clone(&f.session), f.session.stats().sleeps);
        thread::spawn(move || finished.send(session.finish_calls()));
        while f.session.stats().sleeps == sleeps {
            thread::yield_now();
        }
        // Not just about to.
        thread::sleep(Duration::from_millis(100));
    });
    assert_eq!(finishing.recv_timeout(LONG), Ok(Ok(())));
}

/// Catches a session that is ended because another thread is just collecting an answer that came
/// in time.
#[test]
fn an_answer_that_is_being_taken_is_not_overdue() {
    const SHORT: Duration = Duration::from_secs(1);
    let (f, taken, gate) = with_slow_outcomes(SHORT);
    leave_one(&f.session);
    thread::sleep(2 * SHORT);
    while_an_answer_is_taken(&f.session, (&taken, &gate), || {
        for _ in 0..3 {
            assert_eq!(call(&f.session, b"now"), Ok(b"now".to_vec()));
        }
    });
    assert!(f.session.is_connected());
}

/// Catches a call that stays parked while a busy host does not poll memory, and a session that is
/// ended for it.
#[test]
fn a_busy_host_is_notified_of_requests_in_memory() {
    const SHORT: Duration = Duration::from_secs(2);
    let f = Fixture::new(ProviderKind::Shm, SHORT, || {});
    let address = f.running.addresses().iter().find(|a| a.provider() == ProviderKind::Shm).unwrap().clone();
    let (options, _outcomes) = options(ProviderKind::Shm, LONG, || {});
    let other = Session::connect(&address, &options).unwrap();
    thread::scope(|scope| {
        let held = f.gate.lock();
        // Fetched, as the host is awake, so that the thread that looks at memory carries it out.
        let busy = scope.spawn(|| {
            leave_one(&other);
            call(&other, BUSY)
        });
        while !f.busy.load(Ordering::SeqCst) {
            call(&f.session, b"now").unwrap();
        }
        f.session.start_call(b"now, left").unwrap();
        thread::sleep(2 * SHORT);
        let outcome = loop {
            match f.outcomes.try_recv() {
                Ok(outcome) => break outcome,
                Err(_) => assert_eq!(call(&f.session, b"now"), Ok(b"now".to_vec())),
            }
        };
        assert_eq!(outcome, Ok(b"now, left".to_vec()));
        assert!(f.session.is_connected());
        drop(held);
        assert_eq!(busy.join().unwrap(), Ok(BUSY.to_vec()));
    });
}
