//! Tests of calls that the service refuses: the caller gets the reason, and the session goes on.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender, channel},
};

use parking_lot::Mutex;
use rdmabox::{
    CallError, CallsBy, Cancel, Host, HostHandle, Peer, PendingReply, Reply, RequestError, Service, Session,
    StartedReply,
};

use crate::support::{addresses, providers};

/// Longest reason that travels.
const MAX_REASON: usize = 1024;

struct Refusing(Mutex<Sender<PendingReply>>);

impl Service for Refusing {
    fn call(&self, _: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        match request {
            b"long" => return Err("\u{e9}".repeat(MAX_REASON).into()),
            b"late" => self.0.lock().send(reply.defer()).unwrap(),
            b"answered" => {
                reply.defer().answer(b"answered");
                return Err("too late".into());
            }
            b"given up" => {
                drop(reply.defer());
                return Err("too late".into());
            }
            _ if request.starts_with(b"no") => return Err(format!("refused {}", request.len()).into()),
            other => reply.extend_from_slice(other),
        }
        Ok(())
    }
}

struct Fixture {
    pending: Receiver<PendingReply>,
    outcomes: Receiver<Result<Vec<u8>, RequestError>>,
    session: Arc<Session>,
    _running: HostHandle,
    _dir: tempfile::TempDir,
}

/// Runs a test over each provider and with each way to answer calls.
fn on_each(test: impl Fn(Fixture)) {
    for provider in providers() {
        for calls in [CallsBy::Reply, CallsBy::Fetch] {
            eprintln!("--- {provider} {calls}");
            let dir = tempfile::tempdir().unwrap();
            let (send, pending) = channel();
            let listen = addresses(provider, dir.path());
            let running = Host::new().unwrap().listen(&listen, Arc::new(Refusing(Mutex::new(send)))).unwrap();
            let mut listening = running.addresses().iter();
            let address = listening.find(|address| address.provider() == provider).unwrap();
            let (send, outcomes) = channel();
            let send = Mutex::new(send);
            let sink = move |outcome: Result<&[u8], RequestError>| {
                send.lock().send(outcome.map(<[u8]>::to_vec)).unwrap();
            };
            let mut options = Session::builder().provider(provider).calls(calls).into_options();
            options.started_reply = Some(StartedReply::new(sink));
            let session = Session::connect(address, &options).unwrap();
            test(Fixture { pending, outcomes, session, _running: running, _dir: dir });
        }
    }
}

fn refused(reason: &str) -> Result<(), RequestError> {
    Err(RequestError::Rejected { reason: reason.into() })
}

fn answers(session: &Session) {
    let mut reply = Vec::new();
    session.call(b"yes", &mut reply).unwrap();
    assert_eq!(reply, b"yes");
    assert!(session.is_connected());
}

#[test]
fn a_refusal_reaches_its_caller_and_no_other() {
    on_each(|f| {
        let (session, mut reply) = (&f.session, Vec::new());
        for _ in 0..20 {
            assert_eq!(session.call(b"no", &mut reply), refused("refused 2"));
            answers(session);
        }
        std::thread::scope(|scope| {
            for caller in 0..4usize {
                scope.spawn(move || {
                    let request = [&b"no"[..], &vec![b'!'; caller]].concat();
                    for _ in 0..100 {
                        let outcome = session.call(&request, &mut Vec::new());
                        assert_eq!(outcome, refused(&format!("refused {}", request.len())));
                        answers(session);
                    }
                });
            }
        });
    });
}

#[test]
fn a_long_reason_is_cut() {
    on_each(|f| {
        let expected = "\u{e9}".repeat(MAX_REASON / 2);
        assert_eq!(f.session.call(b"long", &mut Vec::new()), refused(&expected));
        answers(&f.session);
    });
}

#[test]
fn calls_at_once_and_waiting_calls_are_refused() {
    on_each(|f| {
        let session = &f.session;
        let requests = [b"yes".to_vec(), b"no".to_vec(), b"yes".to_vec()];
        assert_eq!(session.call_all(&requests, &mut Vec::new()), refused("refused 2"));
        answers(session);
        let cancel = Cancel::new();
        assert_eq!(session.call_waiting(b"no", &mut Vec::new(), &cancel), refused("refused 2"));
        answers(session);
    });
}

#[test]
fn deferred_calls_are_refused_later() {
    on_each(|f| {
        let session = &f.session;
        std::thread::scope(|scope| {
            for _ in 0..10 {
                let call = scope.spawn(|| session.call(b"late", &mut Vec::new()));
                f.pending.recv().unwrap().reject("not any more");
                assert_eq!(call.join().unwrap(), refused("not any more"));
                let call = scope.spawn(|| session.call_waiting(b"late", &mut Vec::new(), &Cancel::new()));
                f.pending.recv().unwrap().reject("not any more");
                assert_eq!(call.join().unwrap(), refused("not any more"));
                answers(session);
            }
        });
    });
}

#[test]
fn a_refusal_after_a_deferral_has_no_effect() {
    on_each(|f| {
        let mut reply = Vec::new();
        f.session.call(b"answered", &mut reply).unwrap();
        assert_eq!(reply, b"answered");
        assert_eq!(f.session.call(b"given up", &mut reply), Err(RequestError::Unanswered));
        answers(&f.session);
    });
}

#[test]
fn refusals_of_started_calls_are_outcomes() {
    on_each(|f| {
        let session = &f.session;
        for _ in 0..10 {
            session.start_call(b"no").unwrap();
            session.start_call(b"yes").unwrap();
            session.start_call(b"late").unwrap();
            f.pending.recv().unwrap().reject("not any more");
            session.finish_calls().unwrap();
            let mut outcomes: Vec<_> =
                f.outcomes.try_iter().map(|outcome| outcome.map_err(|e| e.to_string())).collect();
            outcomes.sort();
            let refused = |reason: &str| Err(format!("the service refused the call: {reason}"));
            assert_eq!(outcomes, [Ok(b"yes".to_vec()), refused("not any more"), refused("refused 2")]);
        }
        answers(session);
    });
}
