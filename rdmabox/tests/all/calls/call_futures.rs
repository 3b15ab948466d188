//! Calls as futures: replies, cancellation, slots, and the end of the session.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures::{
    executor::block_on,
    future::{join, join_all},
};
use rdmabox::{
    CallError, Host, HostHandle, Peer, PendingCall, ProviderKind, Reply, RequestError, Service, Session,
    SessionOptions, wait_all,
};

use crate::support::{addresses, on_each_provider, pattern, providers};

const SOON: Duration = Duration::from_secs(20);

fn reversed(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

#[test]
fn replies_come_back_in_every_way_to_wait() {
    on_each_provider(|f| {
        let session = f.connect();
        for len in [1, 3, 1000, 65536] {
            let request = pattern(len, len);
            assert_eq!(session.call_async(request.clone()).wait().unwrap(), reversed(&request));
            assert_eq!(block_on(session.call_async(request.clone())).unwrap(), reversed(&request));
            let mut call = session.call_async(request.clone());
            assert_eq!(call.wait_timeout(SOON).unwrap().unwrap(), reversed(&request));
        }
        let mut calls: Vec<PendingCall> = (0..100).map(|i| session.call_async(vec![i, 7])).collect();
        let replies = block_on(join_all(calls.split_off(50)));
        for (i, reply) in (50u8..).zip(replies) {
            assert_eq!(reply.unwrap(), [7, i]);
        }
        for (i, call) in calls.into_iter().enumerate().rev() {
            assert_eq!(call.wait().unwrap(), [7, i as u8]);
        }
        let long = session.call_async(vec![0; 65537]);
        assert!(long.is_done());
        assert!(matches!(long.wait(), Err(RequestError::Invalid(_))));
        assert!(session.is_connected());
        assert_eq!(session.stats().calls, 112);
    });
}

#[test]
fn pending_calls_mix_with_all_other_calls() {
    on_each_provider(|f| {
        let session = f.connect();
        thread::scope(|scope| {
            for thread in 0..4u8 {
                let session = &session;
                scope.spawn(move || {
                    let mut reply = Vec::new();
                    let mut replies = Vec::new();
                    for i in 0..100 {
                        let pending: Vec<_> = (0..5).map(|_| session.call_async(vec![i, thread])).collect();
                        session.start_call(b"abc").unwrap();
                        session.call(&[thread, i], &mut reply).unwrap();
                        assert_eq!(reply, [i, thread]);
                        session.call_all(&vec![vec![1, 2]; 3], &mut replies).unwrap();
                        // Two of five are dropped under way.
                        for call in pending.into_iter().skip(2) {
                            let done = if i % 2 == 0 { call.wait() } else { block_on(call) };
                            assert_eq!(done.unwrap(), [thread, i]);
                        }
                    }
                });
            }
        });
        session.finish_calls().unwrap();
        assert!(session.is_connected());
    });
}

/// Answers the call `hold` only after it is released, and counts the calls that it executes.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    executed: AtomicUsize,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Service for Gate {
    fn call(&self, _: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        if request == b"hold" {
            let open = self.open.lock().unwrap();
            drop(self.changed.wait_timeout_while(open, SOON, |open| !*open).unwrap());
        }
        self.executed.fetch_add(1, Ordering::SeqCst);
        if request == b"never" {
            return Err("on purpose".into());
        }
        reply.extend_from_slice(request);
        Ok(())
    }
}

fn on_each_gate(test: impl Fn(&Arc<Gate>, &mut Option<HostHandle>, Arc<Session>, SessionOptions)) {
    for provider in providers() {
        if provider == ProviderKind::Rdma {
            continue;
        }
        eprintln!("--- {provider}");
        let dir = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::default());
        let service = Arc::<Gate>::clone(&gate) as Arc<dyn Service>;
        let host = Host::new().unwrap().listen(&addresses(provider, dir.path()), service).unwrap();
        let address = host.addresses().iter().find(|address| address.provider() == provider).unwrap().clone();
        let options = Session::builder().provider(provider).into_options();
        let session = Session::connect(&address, &options).unwrap();
        test(&gate, &mut Some(host), session, options);
    }
}

#[test]
fn a_dropped_call_is_not_sent_if_it_is_still_queued() {
    on_each_gate(|gate, _, session, _| {
        let held = session.call_async(b"hold".to_vec());
        let queued: Vec<_> = (0..50).map(|_| session.call_async(b"x".to_vec())).collect();
        let last = session.call_async(b"last".to_vec());
        drop(queued);
        gate.open();
        assert_eq!(held.wait().unwrap(), b"hold");
        assert_eq!(last.wait().unwrap(), b"last");
        // Those that had a slot when they were dropped were executed.
        let executed = gate.executed.load(Ordering::SeqCst);
        assert!((2..=2 + 8).contains(&executed), "{executed} calls");
    });
}

/// Catches a dropped call that still counts: as an overdue one, or against the limit.
#[test]
fn a_call_dropped_in_the_queue_does_not_count() {
    on_each_gate(|gate, _, session, _| {
        let held: Vec<_> = (0..8).map(|_| session.call_async(b"hold".to_vec())).collect();
        let hasty = session.with_timeout(Duration::from_millis(20));
        (0..5000).for_each(|_| drop(hasty.call_async(b"x".to_vec())));
        let last = session.call_async(b"last".to_vec());
        thread::scope(|scope| {
            let waits = scope.spawn(|| block_on(last));
            // Longer than the timeout of the dropped calls.
            thread::sleep(Duration::from_millis(100));
            gate.open();
            assert_eq!(waits.join().unwrap().unwrap(), b"last");
        });
        held.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), b"hold"));
    });
}

#[test]
fn a_dropped_call_frees_its_slot_when_the_reply_comes() {
    on_each_gate(|gate, _, session, _| {
        gate.open();
        for round in 0..200u8 {
            drop(session.call_async(b"hold".to_vec()));
            if round % 10 == 0 {
                let mut reply = Vec::new();
                session.call(&[round], &mut reply).unwrap();
                assert_eq!(reply, [round]);
            }
        }
        assert_eq!(block_on(session.call_async(b"end".to_vec())).unwrap(), b"end");
    });
}

#[test]
fn a_blocking_call_gets_a_slot_although_no_thread_polls_for_pending_calls() {
    on_each_gate(|gate, _, session, _| {
        gate.open();
        // They hold their slots until a thread polls for them.
        let pending: Vec<_> = (0..40).map(|_| session.call_async(b"x".to_vec())).collect();
        (0..8).for_each(|_| session.start_call(b"x").unwrap());
        thread::scope(|scope| {
            for _ in 0..20 {
                let session = &session;
                scope.spawn(move || session.call(b"y", &mut Vec::new()).unwrap());
            }
        });
        pending.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), b"x"));
    });
}

#[test]
fn waiting_for_a_time_keeps_the_call() {
    on_each_gate(|gate, _, session, _| {
        let mut held = session.call_async(b"hold".to_vec());
        let began = Instant::now();
        assert!(held.wait_timeout(Duration::from_millis(30)).is_none());
        assert!(began.elapsed() >= Duration::from_millis(30) && !held.is_done());
        assert!(held.wait_timeout(Duration::ZERO).is_none());
        let mut other = session.start_fetch_add(rdmabox::RemoteAddr { addr: 8, rkey: 0 }, 1);
        assert!(!wait_all(&mut [&mut held, &mut other], Duration::from_millis(30)));
        gate.open();
        assert!(wait_all(&mut [&mut held, &mut other], SOON));
        assert_eq!(held.wait_timeout(Duration::ZERO).unwrap().unwrap(), b"hold");
        assert!(other.wait().is_err());
    });
}

#[test]
fn a_call_that_the_service_refuses_fails_alone() {
    on_each_gate(|_, _, session, _| {
        let refused = session.call_async(b"never".to_vec());
        let other = session.call_async(b"other".to_vec());
        assert_eq!(block_on(refused), Err(RequestError::Rejected { reason: "on purpose".into() }));
        assert_eq!(block_on(other).unwrap(), b"other");
        assert!(session.is_connected());
        session.close(Duration::ZERO);
        let late = session.call_async(b"late".to_vec());
        assert_eq!(late.wait(), Err(RequestError::Disconnected));
    });
}

#[test]
fn the_end_of_host_or_session_ends_all_pending_calls() {
    on_each_gate(|gate, host, session, _| {
        let calls: Vec<_> = (0..30).map(|_| session.call_async(b"hold".to_vec())).collect();
        let awaited = thread::spawn(|| block_on(join_all(calls)));
        thread::sleep(Duration::from_millis(20));
        session.close(Duration::ZERO);
        for outcome in awaited.join().unwrap() {
            assert_eq!(outcome, Err(RequestError::Disconnected));
        }
        gate.open();
        drop(host.take());
    });
    on_each_gate(|gate, _, session, _| {
        let call = session.call_async(b"hold".to_vec());
        drop(session);
        assert_eq!(call.wait(), Err(RequestError::Disconnected));
        gate.open();
    });
}

#[test]
fn a_call_without_a_reply_fails_after_the_timeout_in_every_way_to_wait() {
    for awaited in [true, false] {
        on_each_gate(|gate, _, session, _| {
            let hasty = session.with_timeout(Duration::from_millis(100));
            let began = Instant::now();
            let call = hasty.call_async(b"hold".to_vec());
            let queued: Vec<_> = (0..20).map(|_| hasty.call_async(b"hold".to_vec())).collect();
            let outcome = if awaited { block_on(call) } else { call.wait() };
            assert_eq!(outcome, Err(RequestError::Timeout(Duration::from_millis(100))));
            assert!((100..5000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
            for call in queued {
                assert!(matches!(call.wait(), Err(RequestError::Disconnected | RequestError::Timeout(_))));
            }
            assert!(!session.is_connected());
            gate.open();
        });
    }
}

#[test]
fn a_waker_can_start_the_next_call() {
    on_each_provider(|f| {
        let session = f.connect();
        let count = block_on(async {
            let mut count = 0;
            for i in 0..100u8 {
                let both = join(session.call_async(vec![i]), session.call_async(vec![i, i]));
                let (a, b) = both.await;
                count += a.unwrap().len() + b.unwrap().len();
            }
            count
        });
        assert_eq!(count, 300);
    });
}
