//! Tests of deferred replies, on every provider.

use std::sync::{
    Arc,
    mpsc::{self, Receiver, Sender},
};

use crate::support::{addresses, pattern, providers};
use parking_lot::Mutex;
use rdmabox::{
    CallError, CallsBy, Cancel, Host, HostHandle, Peer, PendingReply, ProviderKind, Reply, RequestError,
    Service, Session,
};

/// Hands the debts of its calls to the test.
#[derive(Debug)]
struct Owing {
    debts: Mutex<Sender<(Vec<u8>, PendingReply)>>,
    ended: Mutex<Sender<()>>,
}

impl Service for Owing {
    fn call(&self, _: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        match request.strip_prefix(b"now ") {
            Some(now) => reply.extend_from_slice(now),
            None => {
                let later = reply.defer();
                match request.strip_prefix(b"early ") {
                    // Before this returns, and on another thread.
                    Some(early) => std::thread::scope(|scope| {
                        scope.spawn(|| later.answer(early));
                    }),
                    None => self.debts.lock().send((request.to_vec(), later)).unwrap(),
                }
            }
        }
        Ok(())
    }

    fn disconnected(&self, _: &Peer) {
        // A test that does not care has gone.
        let _ = self.ended.lock().send(());
    }
}

struct Fixture {
    debts: Receiver<(Vec<u8>, PendingReply)>,
    ended: Receiver<()>,
    running: HostHandle,
    session: Arc<Session>,
    _dir: tempfile::TempDir,
}

/// Runs a test on each provider, with replies that are sent and with replies that are fetched where
/// they are not late.
fn on_each_provider(test: impl Fn(Fixture)) {
    for provider in providers() {
        for calls in [CallsBy::Reply, CallsBy::Fetch] {
            eprintln!("--- {provider}, {calls:?}");
            test(Fixture::new(provider, calls));
        }
    }
}

impl Fixture {
    fn new(provider: ProviderKind, calls: CallsBy) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let (send, debts) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let service = Owing { debts: Mutex::new(send), ended: Mutex::new(end) };
        let listen = addresses(provider, dir.path());
        let running = Host::new().unwrap().listen(&listen, Arc::new(service)).unwrap();
        let address = running.addresses().iter().find(|address| address.provider() == provider).unwrap();
        let mut options = Session::builder().provider(provider).calls(calls).into_options();
        if provider == ProviderKind::Rdma {
            // Where it is tested, processors are emulated and slow.
            options.connect_timeout = std::time::Duration::from_secs(60);
            options.operation_timeout = std::time::Duration::from_secs(60);
        }
        let session = Session::connect(address, &options).unwrap();
        Fixture { debts, ended, running, session, _dir: dir }
    }
}

fn call(session: &Session, request: &[u8]) -> Result<Vec<u8>, RequestError> {
    let mut reply = b"old".to_vec();
    session.call(request, &mut reply).map(|()| reply)
}

fn call_waiting(session: &Session, request: &[u8], cancel: &Cancel) -> Result<Vec<u8>, RequestError> {
    let mut reply = b"old".to_vec();
    session.call_waiting(request, &mut reply, cancel).map(|()| reply)
}

#[test]
fn a_reply_may_come_later_from_another_thread_in_any_order() {
    on_each_provider(|f| {
        std::thread::scope(|scope| {
            let callers: Vec<_> = [b"a", b"b", b"c", b"d"]
                .into_iter()
                .enumerate()
                .map(|(i, name)| {
                    let session = &f.session;
                    // Both kinds of calls.
                    let caller = scope.spawn(move || match i % 2 {
                        0 => call(session, name),
                        _ => call_waiting(session, name, &Cancel::new()),
                    });
                    (caller, f.debts.recv().unwrap())
                })
                .collect();
            // The last one first.
            for (caller, (name, debt)) in callers.into_iter().rev() {
                assert!(!caller.is_finished());
                debt.answer(&[&name[..], b" answered"].concat());
                assert_eq!(caller.join().unwrap().unwrap(), [&name[..], b" answered"].concat());
            }
        });
        assert_eq!(f.session.stats().errors, 0);
    });
}

#[test]
fn an_answer_at_once_or_before_the_call_returns_is_one_as_well() {
    on_each_provider(|f| {
        for round in 0..20 {
            for kind in ["now", "early"] {
                let request = format!("{kind} {round}").into_bytes();
                let expected = round.to_string().into_bytes();
                assert_eq!(call(&f.session, &request), Ok(expected.clone()));
                assert_eq!(call_waiting(&f.session, &request, &Cancel::new()), Ok(expected));
            }
        }
    });
}

/// More than there are slots for calls (16), and more than the deferred replies in flight at a
/// time.
const MANY: usize = 40;

#[test]
fn calls_that_wait_take_no_place_from_others_and_their_replies_are_whole() {
    on_each_provider(|f| {
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..MANY)
                .map(|i| {
                    let session = &f.session;
                    let request = (i as u32).to_le_bytes();
                    scope.spawn(move || call_waiting(session, &request, &Cancel::new()))
                })
                .collect();
            let debts: Vec<_> = f.debts.iter().take(MANY).collect();
            for round in 0..MANY {
                assert_eq!(call(&f.session, format!("now {round}").as_bytes()), Ok(round.to_string().into()));
            }
            assert!(callers.iter().all(|caller| !caller.is_finished()));
            let of = |i: u32| pattern(rdmabox::MAX_CALL - i as usize * 1000, i as usize);
            for (request, debt) in debts {
                debt.answer(&of(u32::from_le_bytes(request[..].try_into().unwrap())));
            }
            for (i, caller) in callers.into_iter().enumerate() {
                assert!(caller.join().unwrap().unwrap() == of(i as u32), "{i}");
            }
        });
    });
}

#[test]
fn a_debt_that_is_dropped_ends_its_call_and_nothing_else() {
    on_each_provider(|f| {
        for waiting in [false, true] {
            std::thread::scope(|scope| {
                let caller = scope.spawn(|| match waiting {
                    false => call(&f.session, b"x"),
                    true => call_waiting(&f.session, b"x", &Cancel::new()),
                });
                drop(f.debts.recv().unwrap());
                assert_eq!(caller.join().unwrap(), Err(RequestError::Unanswered));
            });
        }
        assert_eq!(call(&f.session, b"now y"), Ok(b"y".into()));
        assert_eq!(f.session.stats().errors, 2);
    });
}

#[test]
fn a_deferred_reply_to_a_cancelled_wait_is_dropped() {
    on_each_provider(|f| {
        let cancel = Cancel::new();
        std::thread::scope(|scope| {
            let callers = [(); 2].map(|()| scope.spawn(|| call_waiting(&f.session, b"x", &cancel)));
            // The other call keeps waiting, no matter which of the two threads polled.
            let other = scope.spawn(|| call_waiting(&f.session, b"other", &Cancel::new()));
            let mut debts: Vec<_> = f.debts.iter().take(3).collect();
            cancel.cancel();
            for caller in callers {
                assert_eq!(caller.join().unwrap(), Err(RequestError::Cancelled));
            }
            debts.sort_by_key(|(request, _)| request == b"other");
            for (request, debt) in debts {
                debt.answer(&request);
            }
            assert_eq!(other.join().unwrap(), Ok(b"other".into()));
        });
        let calls = f.session.stats().calls;
        // A cancelled handle stays cancelled, and further calls with it are not made.
        assert_eq!(call_waiting(&f.session, b"now z", &cancel), Err(RequestError::Cancelled));
        assert_eq!(f.session.stats().calls, calls);
        assert_eq!(call_waiting(&f.session, b"now z", &Cancel::new()), Ok(b"z".into()));
    });
}

#[test]
fn the_end_of_a_session_ends_what_waits_and_a_late_answer_goes_nowhere() {
    on_each_provider(|f| {
        let debts = std::thread::scope(|scope| {
            let callers = [(); 3].map(|()| scope.spawn(|| call_waiting(&f.session, b"x", &Cancel::new())));
            let slow = scope.spawn(|| call(&f.session, b"y"));
            let debts: Vec<_> = f.debts.iter().take(4).collect();
            f.session.close(std::time::Duration::ZERO);
            for caller in callers.into_iter().chain([slow]) {
                assert_eq!(caller.join().unwrap(), Err(RequestError::Disconnected));
            }
            debts
        });
        f.ended.recv().unwrap();
        debts.into_iter().for_each(|(_, debt)| debt.answer(b"too late"));
        assert_eq!(call_waiting(&f.session, b"z", &Cancel::new()), Err(RequestError::Disconnected));
    });
}

#[test]
fn a_host_that_goes_ends_what_waits() {
    on_each_provider(|f| {
        let Fixture { debts, running, session, .. } = f;
        std::thread::scope(|scope| {
            let callers = [(); 3].map(|()| scope.spawn(|| call_waiting(&session, b"x", &Cancel::new())));
            let owed: Vec<_> = debts.iter().take(3).collect();
            // The `PendingReply` handles keep the service alive.
            drop(running);
            for caller in callers {
                assert_eq!(caller.join().unwrap(), Err(RequestError::Disconnected));
            }
            drop(owed);
        });
        assert!(!session.is_connected());
    });
}

#[test]
fn a_reply_that_is_too_long_ends_the_session_also_when_it_comes_late() {
    on_each_provider(|f| {
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| call_waiting(&f.session, b"x", &Cancel::new()));
            f.debts.recv().unwrap().1.answer(&vec![0; rdmabox::MAX_CALL + 1]);
            assert_eq!(caller.join().unwrap(), Err(RequestError::Disconnected));
        });
    });
}
