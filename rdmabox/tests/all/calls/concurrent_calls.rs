//! Tests of concurrent calls of one thread: each gets its own reply, and all slots are returned.

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use crate::support::{addresses, process::HostProcess, providers};
use parking_lot::Mutex;
use rdmabox::{
    CallError, Host, HostHandle, MAX_CALL, Peer, PendingReply, ProviderKind, Reply, RequestError, Service,
    Session,
};

const LONG: Duration = Duration::from_secs(60);

/// Echoes requests, but defers the reply to requests that begin with `later`.
#[derive(Debug)]
struct Echo(Mutex<Sender<(Vec<u8>, PendingReply)>>);

impl Service for Echo {
    fn call(&self, _: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        match request.starts_with(b"later") {
            true => drop(self.0.lock().send((request.to_vec(), reply.defer()))),
            false => reply.extend_from_slice(request),
        }
        Ok(())
    }
}

fn on_each_provider(
    timeout: Duration,
    test: impl Fn(&Session, &Receiver<(Vec<u8>, PendingReply)>, HostHandle),
) {
    for provider in providers() {
        let dir = tempfile::tempdir().unwrap();
        let (send, debts) = mpsc::channel();
        let listen = addresses(provider, dir.path());
        let running = Host::new().unwrap().listen(&listen, Arc::new(Echo(Mutex::new(send)))).unwrap();
        let address = running.addresses().iter().find(|address| address.provider() == provider).unwrap();
        test(&connect(address, provider, timeout), &debts, running);
    }
}

fn connect(address: &rdmabox::Address, provider: ProviderKind, operation_timeout: Duration) -> Arc<Session> {
    Session::builder()
        .provider(provider)
        .connect_timeout(LONG)
        .operation_timeout(operation_timeout)
        .connect(address)
        .unwrap()
}

fn requests(name: &str, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|at| format!("{name} {at}").into_bytes()).collect()
}

#[test]
fn each_of_many_calls_gets_its_own_reply() {
    on_each_provider(LONG, |session, _, _| {
        let mut replies = vec![b"old".to_vec(); 50];
        for count in [0, 1, 2, 16, 17, 100] {
            let requests = requests("now", count);
            session.call_all(&requests, &mut replies).unwrap();
            assert_eq!(replies, requests);
        }
        let longest = vec![vec![7; MAX_CALL]; 20];
        session.call_all(&longest, &mut replies).unwrap();
        assert!(replies == longest);
        let long = [vec![], vec![0; MAX_CALL + 1]];
        assert!(matches!(session.call_all(&long, &mut replies), Err(RequestError::Invalid(_))));
        session.call_all(&long[..1], &mut replies).unwrap();
        assert_eq!(replies, [b""]);
    });
}

/// Threads that wait for each other's places would wait for ever.
#[test]
fn many_threads_call_together_and_alone() {
    on_each_provider(LONG, |session, _, _| {
        thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    let mut replies = Vec::new();
                    for round in 0..40 {
                        let requests = requests(&format!("{thread}.{round}"), 1 + (thread * 7 + round) % 20);
                        session.call_all(&requests, &mut replies).unwrap();
                        assert_eq!(replies, requests);
                        let mut reply = Vec::new();
                        session.call(&requests[0], &mut reply).unwrap();
                        assert_eq!(reply, requests[0]);
                    }
                });
            }
        });
    });
}

/// While the replies to many are owed, a call that is waited for finds a place.
#[test]
fn started_calls_leave_room_for_a_blocking_call() {
    on_each_provider(LONG, |session, debts, _| {
        thread::scope(|scope| {
            let many = scope.spawn(|| {
                let mut replies = Vec::new();
                session.call_all(&requests("later", 20), &mut replies).map(|()| replies)
            });
            let mut reply = Vec::new();
            for _ in 0..20 {
                let (request, later) = debts.recv().unwrap();
                session.call(b"now", &mut reply).unwrap();
                assert_eq!(reply, b"now");
                later.answer(&request);
            }
            assert_eq!(many.join().unwrap(), Ok(requests("later", 20)));
        });
    });
}

#[test]
fn a_host_that_goes_ends_them_all() {
    for provider in providers() {
        let host = HostProcess::start(provider);
        let session = connect(&host.address, provider, LONG);
        let mut replies = Vec::new();
        thread::scope(|scope| {
            let calls = scope.spawn(|| {
                loop {
                    if let Err(e) = session.call_all(&requests("now", 30), &mut replies) {
                        return e;
                    }
                }
            });
            host.kill();
            assert_eq!(calls.join().unwrap(), RequestError::Disconnected);
        });
        assert_eq!(session.call_all(&requests("now", 2), &mut Vec::new()), Err(RequestError::Disconnected));
    }
}
