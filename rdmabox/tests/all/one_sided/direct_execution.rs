//! Tests of requests on mapped memory that their caller executes: no work request, the same
//! effects and errors.

use std::sync::{Arc, mpsc};

use rdmabox::{Op, ProviderKind, RemoteAddr, RequestError, Session, verbs::WcStatus};

use crate::support::{Fixture, at, base, on_each_provider, pattern, split};

/// Makes a lone request in each way that there is: eleven.
fn every_kind(f: &Fixture, session: &Session, base: RemoteAddr) {
    f.memory.write(0, &[0; 64]);
    let data = pattern(5000, 1);
    let mut out = vec![0; 5000];
    session.write(at(base, 4096), &data).unwrap();
    session.read(at(base, 4096), &mut out).unwrap();
    assert!(out == data);
    assert_eq!(session.compare_swap(base, 0, 7), Ok(0));
    assert_eq!(session.compare_swap(base, 0, 8), Ok(7));
    assert_eq!(session.fetch_add(base, 3), Ok(7));
    let data = session.start_write(at(base, 9999), data).wait().unwrap();
    let out = session.start_read(at(base, 9999), vec![0; 5000]).wait().unwrap();
    assert!(out == data);
    let (mut old, mut word) = (0, [0; 8]);
    let mut list = [
        Op::CompareSwap { remote: base, compare: 10, swap: 11, old: &mut old },
        Op::Write { remote: at(base, 8), data: &[5; 8] },
        Op::Read { remote: at(base, 8), out: &mut word },
        Op::Write { remote: at(base, 8), data: &[6; 8] },
    ];
    session.execute(&mut list).unwrap();
    assert_eq!((old, word), (10, [5; 8]));
    assert_eq!((f.memory.load_u64(0), f.memory.load_u64(8)), (11, 0x0606_0606_0606_0606));
}

#[test]
fn lone_requests_need_no_work_request_where_memory_is_mapped_and_may_be_told_to() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let mapped = session.provider() == ProviderKind::Shm && f.options.direct;
        // Until the handle of the memory has come, requests are posted.
        while mapped && session.stats().direct == 0 {
            session.read(base, &mut [0]).unwrap();
        }
        let before = session.stats();
        every_kind(&f, &session, base);
        let since = session.stats().since(&before);
        assert_eq!((since.direct, since.work_requests), if mapped { (11, 0) } else { (0, 11) });
        assert_eq!((since.read_requests, since.write_requests, since.atomic_requests), (3, 4, 4));
        assert_eq!((since.bytes_read, since.bytes_written), (10_008, 10_016));
        assert_eq!(session.in_flight().0, 0);
    });
}

#[test]
fn a_refused_request_fails_with_its_status_and_the_lane_comes_back() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        f.memory.write(0, &[1; 8]);
        let wrong = RemoteAddr { rkey: base.rkey ^ 0x100, ..base };
        for round in 1..=20 {
            let refused = Err(RequestError::Completion(WcStatus::RemAccessErr));
            let mut out = [9; 8];
            let result = match round % 3 {
                0 => session.read(wrong, &mut out),
                1 => session.write(wrong, &[2; 8]),
                _ => session.fetch_add(wrong, 1).map(drop),
            };
            assert_eq!((result, out), (refused, [9; 8]));
            // The others serve, or the broken ones are back.
            assert_eq!((session.read(base, &mut out), out), (Ok(()), [1; 8]));
            assert_eq!(session.stats().errors, round);
        }
    });
}

#[test]
fn a_closed_session_touches_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        session.close(std::time::Duration::ZERO);
        assert_eq!(session.write(base, &[1; 8]), Err(RequestError::Disconnected));
        assert_eq!(split(session.start_write(base, vec![1; 8]).wait()).0, Err(RequestError::Disconnected));
        assert_eq!(f.memory.load_u64(0), 0);
    });
}

/// Starts a request whose callback starts the next one, `left` times.
fn chain(session: &Arc<Session>, remote: RemoteAddr, left: usize, done: mpsc::Sender<()>) {
    let next = Arc::clone(session);
    session.write_then(remote, vec![1; 8], move |outcome| {
        outcome.unwrap();
        match left {
            0 => done.send(()).unwrap(),
            left => chain(&next, remote, left - 1, done),
        }
    });
}

#[test]
fn callbacks_that_start_requests_do_not_pile_up() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (done, finished) = mpsc::channel();
        // More than a stack has room for.
        chain(&session, base, 50_000, done);
        finished.recv().unwrap();
        assert_eq!(session.stats().callbacks, 50_001);
    });
}
