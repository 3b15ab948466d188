//! Handles of a session with operation timeouts of their own.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use futures::executor::block_on;
use rdmabox::{
    Op, OwnedOp, PollingMode, ProviderKind, RemoteAddr, RequestError, Session, SessionBuilder, across,
    wait_all,
};

use crate::support::{at, base, on_each_provider, process::HostProcess, providers};

#[test]
fn handles_share_the_session_and_its_counters() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let other = session.with_timeout(Duration::from_secs(3));
        assert_eq!(
            (other.timeout(), session.timeout()),
            (Duration::from_secs(3), f.options.operation_timeout)
        );
        other.write(base, &[1; 8]).unwrap();
        assert_eq!(session.stats().write_requests, 1);
        let (mut back, mut old) = ([0; 8], 0);
        let mut list = [
            Op::Read { remote: base, out: &mut back },
            Op::FetchAdd { remote: at(base, 8), add: 1, old: &mut old },
        ];
        other.execute(&mut list).unwrap();
        assert_eq!(other.start_fetch_add(at(base, 8), 1).wait(), Ok(1));
        drop(session);
        // The last handle keeps the session.
        other.read(base, &mut back).unwrap();
        assert_eq!(back, [1; 8]);
        let again = other.with_timeout(Duration::MAX);
        other.close(Duration::ZERO);
        assert_eq!(again.write(base, &[1; 8]), Err(RequestError::Disconnected));
    });
}

/// Returns the process of a host over TCP, and a session with a long timeout. Returns `None` if
/// TCP is not tested.
fn host_over_tcp(more: impl FnOnce(SessionBuilder) -> SessionBuilder) -> Option<(HostProcess, Arc<Session>)> {
    if !providers().contains(&ProviderKind::Tcp) {
        eprintln!("not run: TCP is not among the providers to test");
        return None;
    }
    let host = HostProcess::start(ProviderKind::Tcp);
    let session = Session::builder().provider(ProviderKind::Tcp).operation_timeout(Duration::from_secs(120));
    let session = more(session).connect(&host.address).unwrap();
    Some((host, session))
}

/// A host over TCP that is stopped, so that no request is done.
#[test]
fn requests_of_a_handle_fail_after_its_timeout_in_every_way_to_wait() {
    let Some((host, session)) = host_over_tcp(|session| session.queue_pairs(8)) else { return };
    let base = base(&session);
    host.stop();
    let short = Duration::from_millis(200);
    let hasty = session.with_timeout(short);
    let late = Err(RequestError::Timeout(short));
    let timed = |what: &str, wait: &dyn Fn()| {
        let began = Instant::now();
        wait();
        assert!((190..20_000).contains(&began.elapsed().as_millis()), "{what}: {:?}", began.elapsed());
    };
    timed("blocking", &|| assert_eq!(hasty.write(base, &[1; 8]), late));
    timed("waited for", &|| {
        assert_eq!(hasty.start_write(base, vec![1; 8]).wait().map(drop).map_err(RequestError::from), late);
    });
    timed("awaited", &|| {
        let outcome = block_on(hasty.start_fetch_add(at(base, 64), 1));
        assert_eq!(outcome.map(drop).map_err(RequestError::from), late);
    });
    timed("a callback", &|| {
        let (send, receive) = mpsc::channel();
        let list: Vec<OwnedOp> = vec![OwnedOp::FetchAdd { remote: at(base, 128), add: 1, old: 0 }];
        hasty.execute_then(list, move |outcome| send.send(outcome.map(drop)).unwrap());
        assert_eq!(receive.recv().unwrap().map_err(RequestError::from), late);
    });
    timed("across", &|| {
        let mut list = [Op::Write { remote: at(base, 256), data: &[1; 8] }];
        assert_eq!(across(&mut [(&hasty, &mut list)]), std::slice::from_ref(&late));
    });
    timed("together with others", &|| {
        let mut write = hasty.start_write(at(base, 512), vec![1; 8]);
        assert!(wait_all(&mut [&mut write], Duration::from_secs(60)), "it was ended");
        assert_eq!(write.wait().map(drop).map_err(RequestError::from), late);
    });
}

/// The thread that looks for overdue requests sleeps for half of the timeout that it knows.
#[test]
fn a_shorter_timeout_counts_although_a_poller_sleeps() {
    for polling in [PollingMode::Event, PollingMode::Busy, PollingMode::SharedCq(1)] {
        let Some((host, session)) = host_over_tcp(|session| session.polling(polling)) else { return };
        let base = base(&session);
        host.stop();
        let before = session.stats();
        let slow = session.start_write(base, vec![1; 8]);
        let mut slow = pin!(slow);
        assert!(slow.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // The poller has chosen the time of its next check.
        while session.stats().sleeps == before.sleeps && session.stats().polls < before.polls + 10_000 {
            thread::sleep(Duration::from_millis(1));
        }
        let hasty = session.with_timeout(Duration::from_millis(200));
        let began = Instant::now();
        let outcome = block_on(hasty.start_write(at(base, 64), vec![1; 8]));
        assert_eq!(outcome.unwrap_err().error, RequestError::Timeout(hasty.timeout()));
        assert!(began.elapsed() < Duration::from_secs(20), "{polling}: {:?}", began.elapsed());
    }
}

/// The window is full of a request with a longer timeout, which goes on.
#[test]
fn a_shorter_timeout_counts_although_the_request_waits_for_room() {
    let Some((host, session)) = host_over_tcp(|session| session.window_bytes(4096)) else { return };
    let base = base(&session);
    host.stop();
    let slow = session.start_write(base, vec![1; 4096]);
    let hasty = session.with_timeout(Duration::from_millis(200));
    let began = Instant::now();
    let outcome = block_on(hasty.start_write(at(base, 8192), vec![1; 8]));
    assert_eq!(outcome.unwrap_err().error, RequestError::Timeout(hasty.timeout()));
    let (send, receive) = mpsc::channel();
    hasty.read_then(at(base, 8192), vec![0; 8], move |outcome| send.send(outcome.map(drop)).unwrap());
    let late = RequestError::Timeout(hasty.timeout());
    assert_eq!(receive.recv().unwrap().map_err(RequestError::from), Err(late));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    host.go_on();
    slow.wait().unwrap();
    assert_eq!((session.stats().lane_failures, session.in_flight().0), (0, 0));
}

/// All lanes of a silent host are down, and it gives no new queue pair. Catches a request that
/// waits for a lane until the session ends.
#[test]
fn a_timeout_counts_although_no_lane_is_up() {
    for polling in [PollingMode::Event, PollingMode::SharedCq(1)] {
        let slow_to_replace = |session: SessionBuilder| {
            session.queue_pairs(2).polling(polling).connect_timeout(Duration::from_secs(60))
        };
        let Some((host, session)) = host_over_tcp(slow_to_replace) else { return };
        let base = base(&session);
        let hasty = session.with_timeout(Duration::from_millis(200));
        let late = RequestError::Timeout(hasty.timeout());
        host.stop();
        let began = Instant::now();
        // A large request goes to the next lane.
        for place in [base, at(base, 1 << 19)] {
            assert_eq!(hasty.write(place, &[1; 32 << 10]), Err(late.clone()));
        }
        assert_eq!(session.stats().lane_failures, 2);
        let outcome = block_on(hasty.start_write(at(base, 1 << 20), vec![1; 8]));
        assert_eq!(outcome.unwrap_err().error, late);
        let (send, receive) = mpsc::channel();
        hasty.read_then(at(base, 1 << 20), vec![0; 8], move |outcome| send.send(outcome.map(drop)).unwrap());
        assert_eq!(receive.recv().unwrap().map_err(RequestError::from), Err(late));
        assert!(began.elapsed() < Duration::from_secs(30), "{polling}: {:?}", began.elapsed());
        assert!(session.is_connected(), "the session waits for its queue pairs");
    }
}

/// Adds to a word once, as the documentation of [`RequestError`] does. Returns the number of
/// attempts with an unknown outcome.
fn add_once(session: &Session, word: RemoteAddr, before: u64, amount: u64) -> u64 {
    let mut unknown = 0;
    loop {
        match session.fetch_add(word, amount) {
            Err(e) if e.is_retryable() => unknown += u64::from(e.outcome_unknown()),
            known => {
                known.unwrap();
                return unknown;
            }
        }
        let now = loop {
            match session.fetch_add(word, 0) {
                Err(e) if e.is_retryable() => {}
                other => break other.unwrap(),
            }
        };
        if now != before {
            return unknown;
        }
    }
}

/// Additions time out at a host that is stopped again and again. Catches one that the host makes
/// after the client has repeated it.
#[test]
fn additions_at_a_host_that_stops_are_made_once() {
    const STOPS: u64 = 12;
    let patient = |session: SessionBuilder| session.queue_pairs(2).connect_timeout(Duration::from_secs(60));
    let Some((host, session)) = host_over_tcp(patient) else { return };
    let word = base(&session);
    let hasty = session.with_timeout(Duration::from_millis(50));
    let ended = AtomicBool::new(false);
    let (count, unknown) = thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..STOPS {
                host.stop();
                thread::sleep(Duration::from_millis(120));
                host.go_on();
                thread::sleep(Duration::from_millis(60));
            }
            ended.store(true, Ordering::SeqCst);
        });
        let (mut count, mut unknown) = (0, 0);
        while !ended.load(Ordering::SeqCst) {
            unknown += add_once(&hasty, word, 5 * count, 5);
            count += 1;
        }
        (count, unknown)
    });
    eprintln!("{count} additions, {unknown} attempts with an unknown outcome");
    assert!(unknown > 0, "the host was stopped between them");
    assert_eq!(session.fetch_add(word, 0), Ok(5 * count));
}

/// As for one-sided requests: the thread `rdmabox-calls` sleeps.
#[test]
fn a_shorter_timeout_counts_although_the_poller_of_calls_sleeps() {
    let event = |session: SessionBuilder| session.polling(PollingMode::Event);
    let Some((host, session)) = host_over_tcp(event) else { return };
    host.stop();
    let sleeps = session.stats().sleeps;
    let slow = session.call_async(b"abc".to_vec());
    let mut slow = pin!(slow);
    assert!(slow.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    while session.stats().sleeps == sleeps {
        thread::sleep(Duration::from_millis(1));
    }
    let hasty = session.with_timeout(Duration::from_millis(200));
    let began = Instant::now();
    assert_eq!(block_on(hasty.call_async(b"abc".to_vec())), Err(RequestError::Timeout(hasty.timeout())));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
