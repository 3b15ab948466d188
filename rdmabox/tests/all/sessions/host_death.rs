//! Tests of a host that is killed under load: every request ends once, before its timeout, with
//! its buffer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use futures::executor::block_on;
use rdmabox::{Op, RemoteAddr, RequestError, Session};

use crate::support::{at, base, process::HostProcess, providers, split};

/// Timeout of the requests, much longer than they need.
const TIMEOUT: Duration = Duration::from_secs(60);
const BLOCK: usize = 128 * 1024;
/// Requests that are waiting for their callbacks at a time.
const CALLBACKS: usize = 16;

/// Requests by how they ended.
#[derive(Debug, Default)]
struct Ends {
    done: AtomicUsize,
    failed: AtomicUsize,
}

impl Ends {
    /// Counts a result; false when there is no sense in another request.
    fn count(&self, result: &Result<(), RequestError>) -> bool {
        let by = if result.is_ok() { &self.done } else { &self.failed };
        by.fetch_add(1, Ordering::SeqCst);
        match result {
            // The device may find out before the session does.
            Ok(()) | Err(RequestError::Flushed | RequestError::Completion(_)) => true,
            Err(RequestError::Disconnected) => false,
            Err(other) => panic!("{other}"),
        }
    }

    fn all(&self) -> usize {
        self.done.load(Ordering::SeqCst) + self.failed.load(Ordering::SeqCst)
    }
}

/// Makes requests of one kind until the session is over; how many there were.
fn until_the_end(ends: &Ends, mut request: impl FnMut() -> Result<(), RequestError>) -> usize {
    (1..).find(|_| !ends.count(&request())).unwrap()
}

/// Starts requests with callbacks, each of which starts the next request. Returns the number
/// started after the last callback.
fn callbacks_until_the_end(session: &Arc<Session>, base: RemoteAddr, ends: &Arc<Ends>) -> usize {
    fn next(
        session: &Arc<Session>,
        remote: RemoteAddr,
        buf: Vec<u8>,
        ends: &Arc<Ends>,
        said: mpsc::Sender<()>,
    ) {
        said.send(()).unwrap();
        let (own, ends, called) = (Arc::clone(session), Arc::clone(ends), AtomicBool::new(false));
        session.write_then(remote, buf, move |outcome| {
            let (result, buf) = split(outcome);
            assert!(!called.swap(true, Ordering::SeqCst), "called back twice");
            assert_eq!(buf.len(), BLOCK, "the buffer has come back");
            if ends.count(&result) {
                next(&own, remote, buf, &ends, said);
            }
        });
    }
    let (said, started) = mpsc::channel();
    for place in 0..CALLBACKS {
        next(session, at(base, (8 + place) * BLOCK), vec![3; BLOCK], ends, said.clone());
    }
    drop(said);
    // Ends when every callback has run and none has started another request.
    started.iter().count()
}

fn writes_until_the_end(session: &Session, base: RemoteAddr, ends: &Ends) -> usize {
    let data = vec![1; 2 * BLOCK];
    until_the_end(ends, || session.write(base, &data))
}

fn reads_until_the_end(session: &Session, base: RemoteAddr, ends: &Ends) -> usize {
    let mut out = vec![0; 2 * BLOCK];
    until_the_end(ends, || session.read(at(base, 2 * BLOCK), &mut out))
}

fn lists_until_the_end(session: &Session, base: RemoteAddr, ends: &Ends) -> usize {
    let (data, mut old) = (vec![2; 10_000], 0);
    until_the_end(ends, || {
        session.execute(&mut [
            Op::Write { remote: at(base, 5 * BLOCK), data: &data },
            Op::FetchAdd { remote: at(base, 6 * BLOCK), add: 1, old: &mut old },
        ])
    })
}

fn calls_until_the_end(session: &Session, ends: &Ends) -> usize {
    let mut reply = Vec::new();
    until_the_end(ends, || session.call(b"any", &mut reply))
}

fn futures_until_the_end(session: &Session, base: RemoteAddr, ends: &Ends) -> usize {
    let mut buf = vec![4; BLOCK];
    until_the_end(ends, || {
        let remote = at(base, 7 * BLOCK);
        let write = session.start_write(remote, std::mem::take(&mut buf));
        let (result, back) = split(block_on(write));
        assert_eq!(back.len(), BLOCK, "the buffer has come back");
        buf = back;
        result
    })
}

/// Makes requests of all kinds, and kills the host once each kind has had more than `least`
/// replies.
/// Returns the number of requests of each kind, and the moment of the kill.
fn kill_under_load(
    host: HostProcess,
    session: &Arc<Session>,
    ends: &[Arc<Ends>; 6],
    least: usize,
) -> ([usize; 6], Instant) {
    let base = base(session);
    let [writes, reads, lists, calls, futures, called] = ends;
    thread::scope(|scope| {
        let threads = [
            scope.spawn(|| writes_until_the_end(session, base, writes)),
            scope.spawn(|| reads_until_the_end(session, base, reads)),
            scope.spawn(|| lists_until_the_end(session, base, lists)),
            scope.spawn(|| calls_until_the_end(session, calls)),
            scope.spawn(|| futures_until_the_end(session, base, futures)),
            scope.spawn(|| callbacks_until_the_end(session, base, called)),
        ];
        while ends.iter().any(|ends| ends.done.load(Ordering::SeqCst) <= least) {
            thread::yield_now();
        }
        host.kill();
        let killed = Instant::now();
        (threads.map(|thread| thread.join().unwrap()), killed)
    })
}

#[test]
fn every_request_ends_once_and_before_its_time_is_over() {
    for provider in providers() {
        for round in 0..3usize {
            let host = HostProcess::start(provider);
            let session = Session::builder()
                .provider(provider)
                .operation_timeout(TIMEOUT)
                .connect_timeout(TIMEOUT)
                .connect(&host.address)
                .unwrap();
            let ends: [Arc<Ends>; 6] = Default::default();
            let begun = Instant::now();
            let (made, killed) = kill_under_load(host, &session, &ends, 3 * round);
            assert!(killed.elapsed() < TIMEOUT, "{provider}: {:?}", killed.elapsed());
            let ended = ends.each_ref().map(|ends| ends.all());
            assert_eq!(ended, made, "{provider}: requests that ended, and that were made");
            for ends in &ends {
                assert!(ends.failed.load(Ordering::SeqCst) >= 1, "{provider}: {ends:?}");
            }
            assert!(!session.is_connected());
            assert_eq!(session.in_flight().0, 0, "{provider}: bytes that count as in flight");
            eprintln!(
                "{provider}: killed after {:?}; the last of {} requests, of which {} failed, ended {:?} later",
                killed - begun,
                made.iter().sum::<usize>(),
                ends.iter().map(|ends| ends.failed.load(Ordering::SeqCst)).sum::<usize>(),
                killed.elapsed(),
            );
        }
    }
}
