//! Tests of requests that are executed at once: same effects and failures as posted requests, and
//! the same order.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rdmabox::verbs::{Access, AtomicOp, DirectOp, QpState, RemoteAddr, WcStatus};

use crate::fixture::{Buf, Config, Pair, Provider, SEND, pair, pattern, signaled, unsignaled, until, write};

conformance! {
    lone_direct_requests_behave_like_posted_ones,
    refusals_are_those_of_a_post,
    no_direct_request_runs_without_a_connection,
    no_direct_request_overtakes_posted_requests,
    no_direct_request_runs_after_the_connection_ended,
    regions_that_are_gone_are_refused,
    threads_run_side_by_side,
    the_end_waits_for_what_is_under_way,
}

const EVERYTHING: Access = Access::REMOTE_ANY;

/// Returns memory of the peer whose handle has arrived.
fn target(pair: &Pair, len: usize, access: Access) -> Buf {
    let buf = pair.b.guarded(len, access);
    until("the handle of the memory", || {
        pair.pump();
        pair.a.qp.map_remote(buf.remote(0), 1, access)
    });
    buf
}

fn is_mapped(config: Config) -> bool {
    config.provider == Provider::Shm
}

fn lone_direct_requests_behave_like_posted_ones(config: Config) {
    const LEN: usize = 300_000;
    let pair = pair(config);
    if !is_mapped(config) {
        // Not by accident: the same request can be posted.
        let buf = pair.b.guarded(8, EVERYTHING);
        assert_eq!(pair.a.qp.execute_now(&mut DirectOp::Write { remote: buf.remote(0), data: &[1] }), None);
        buf.assert_untouched();
        return;
    }
    let buf = target(&pair, LEN, EVERYTHING);
    let qp = &pair.a.qp;
    let data = pattern(1, LEN);
    let mut back = vec![0; LEN];
    for (at, len) in [(0, 0), (0, 1), (1, 8), (77, 4096), (0, LEN), (LEN, 0), (LEN - 1, 1)] {
        let mut op = DirectOp::Write { remote: buf.remote(at), data: &data[at..at + len] };
        assert_eq!(qp.execute_now(&mut op), Some(Ok(())));
        assert_eq!(buf.get(at, len), data[at..at + len]);
        let mut op = DirectOp::Read { remote: buf.remote(at), out: &mut back[..len] };
        assert_eq!(qp.execute_now(&mut op), Some(Ok(())));
        assert_eq!(back[..len], data[at..at + len]);
    }
    buf.set(8, &7u64.to_le_bytes());
    let (remote, mut old) = (buf.remote(8), 0);
    assert_eq!(
        qp.execute_now(&mut DirectOp::FetchAdd { remote, add: u64::MAX, old: &mut old }),
        Some(Ok(()))
    );
    assert_eq!((old, buf.word(8)), (7, 6));
    let mut op = DirectOp::CompareSwap { remote, compare: 6, swap: 9, old: &mut old };
    assert_eq!(qp.execute_now(&mut op), Some(Ok(())));
    assert_eq!((old, buf.word(8)), (6, 9));
    let mut op = DirectOp::CompareSwap { remote, compare: 6, swap: 1, old: &mut old };
    assert_eq!(qp.execute_now(&mut op), Some(Ok(())));
    assert_eq!((old, buf.word(8)), (9, 9));
    let mut op = DirectOp::FetchOp { remote, op: AtomicOp::Max(u64::MAX), old: &mut old };
    assert_eq!(qp.execute_now(&mut op), Some(Ok(())));
    assert_eq!((old, buf.word(8)), (9, u64::MAX));
    buf.assert_guards();
    pair.assert_quiet();
}

fn refusals_are_those_of_a_post(config: Config) {
    if !is_mapped(config) {
        return;
    }
    let cases: [(Access, usize, usize, WcStatus); 5] = [
        (Access::REMOTE_READ, 0, 8, WcStatus::RemAccessErr),
        (Access::REMOTE_WRITE, 0, 65, WcStatus::RemAccessErr),
        (Access::REMOTE_WRITE, 64, 1, WcStatus::RemAccessErr),
        (Access::REMOTE_WRITE, 57, 8, WcStatus::RemAccessErr),
        (Access::REMOTE_ATOMIC, 0, 1, WcStatus::RemAccessErr),
    ];
    for (access, at, len, status) in cases {
        let pair = pair(config);
        let buf = target(&pair, 64, access);
        let op = DirectOp::Write { remote: buf.remote(at), data: &vec![1; len] };
        refused(&pair, &buf, op, status);
    }
    fn swap<'a>(remote: RemoteAddr, old: &'a mut u64, _: &'a mut [u8]) -> DirectOp<'a> {
        DirectOp::FetchOp { remote, op: AtomicOp::Swap(1), old }
    }
    type Make = for<'a> fn(RemoteAddr, &'a mut u64, &'a mut [u8]) -> DirectOp<'a>;
    let cases: [(Access, usize, WcStatus, Make); 7] = [
        (Access::REMOTE_WRITE, 0, WcStatus::RemAccessErr, |remote, _, out| DirectOp::Read { remote, out }),
        (Access::REMOTE_ATOMIC, 4, WcStatus::RemInvReqErr, |remote, old, _| DirectOp::FetchAdd {
            remote,
            add: 1,
            old,
        }),
        (Access::REMOTE_ATOMIC, 64, WcStatus::RemAccessErr, |remote, old, _| DirectOp::FetchAdd {
            remote,
            add: 1,
            old,
        }),
        (Access::REMOTE_WRITE, 0, WcStatus::RemAccessErr, |remote, old, _| DirectOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
            old,
        }),
        (Access::REMOTE_ATOMIC, 4, WcStatus::RemInvReqErr, swap),
        (Access::REMOTE_ATOMIC, 64, WcStatus::RemAccessErr, swap),
        (Access::REMOTE_WRITE, 0, WcStatus::RemAccessErr, swap),
    ];
    for (access, at, status, make) in cases {
        let pair = pair(config);
        let buf = target(&pair, 64, access);
        let (mut old, mut out) = (77, [77; 8]);
        refused(&pair, &buf, make(buf.remote(at), &mut old, &mut out), status);
        assert_eq!((old, out), (77, [77; 8]), "memory of a request that failed");
    }
}

/// Asserts that the request fails, moves both ends to Err, and flushes waiting requests.
fn refused(pair: &Pair, buf: &Buf, mut op: DirectOp<'_>, status: WcStatus) {
    pair.a.recv(5, &[]);
    assert_eq!(pair.a.qp.execute_now(&mut op), Some(Err(status)));
    assert_eq!(pair.a.qp.state(), QpState::Err);
    buf.assert_untouched();
    let wc = pair.received(&pair.a);
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::WrFlushErr));
    pair.until("the peer to notice", || (pair.b.qp.state() == QpState::Err).then_some(()));
    pair.assert_quiet();
}

fn no_direct_request_runs_without_a_connection(config: Config) {
    let pair = crate::fixture::Setup::new(config).apart();
    let remote = RemoteAddr { addr: 0, rkey: 0 };
    assert_eq!(pair.a.qp.execute_now(&mut DirectOp::Write { remote, data: &[] }), None);
    assert_eq!(pair.a.qp.state(), QpState::Init);
}

fn no_direct_request_overtakes_posted_requests(config: Config) {
    if !is_mapped(config) {
        return;
    }
    let pair = pair(config);
    let buf = target(&pair, 8, EVERYTHING);
    let other = pair.a.filled(&[2]);
    // The peer does not take the message, so the WRITE is held behind it.
    pair.a.post(&[unsignaled(1, SEND, &[]), signaled(2, write(buf.remote(1)), &[other.all()])]);
    let now = || pair.a.qp.execute_now(&mut DirectOp::Write { remote: buf.remote(0), data: &[3, 3] });
    for _ in 0..100 {
        assert_eq!(now(), None);
        pair.pump();
    }
    buf.assert_untouched();
    pair.b.recv(9, &[]);
    let wc = pair.sent(&pair.a);
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::Success));
    assert_eq!(until("everything posted to be done", now), Ok(()));
    assert_eq!(buf.get(0, 2), [3, 3]);
    // Completions that wait to be polled are no reason.
    pair.a.post(&[signaled(3, write(buf.remote(1)), &[other.all()])]);
    assert_eq!(now(), Some(Ok(())));
    assert_eq!(buf.get(0, 2), [3, 3]);
}

fn no_direct_request_runs_after_the_connection_ended(config: Config) {
    if !is_mapped(config) {
        return;
    }
    for by_peer in [false, true] {
        let pair = pair(config);
        let buf = target(&pair, 8, EVERYTHING);
        match by_peer {
            true => pair.b.qp.to_error(),
            false => pair.a.qp.to_error(),
        }
        pair.until("the end", || (pair.a.qp.state() == QpState::Err).then_some(()));
        assert_eq!(pair.a.qp.execute_now(&mut DirectOp::Write { remote: buf.remote(0), data: &[1] }), None);
        buf.assert_untouched();
    }
}

fn regions_that_are_gone_are_refused(config: Config) {
    if !is_mapped(config) {
        return;
    }
    let pair = pair(config);
    let buf = target(&pair, 8, EVERYTHING);
    let stale = buf.remote(0);
    let Buf { memory, mr, start, .. } = buf;
    drop(mr);
    let mut op = DirectOp::Write { remote: stale, data: &[1; 8] };
    assert_eq!(pair.a.qp.execute_now(&mut op), Some(Err(WcStatus::RemAccessErr)));
    assert_eq!(memory.load_u64(start), 0);
}

fn threads_run_side_by_side(config: Config) {
    const THREADS: usize = 4;
    const EACH: u64 = 2_000;
    const LEN: usize = 1000;
    if !is_mapped(config) {
        return;
    }
    let pair = pair(config);
    let buf = target(&pair, 8 + THREADS * LEN, EVERYTHING);
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (qp, buf) = (&pair.a.qp, &buf);
            scope.spawn(move || {
                let place = buf.remote(8 + index * LEN);
                for round in 0..EACH {
                    let data = pattern(round + 1, LEN);
                    assert_eq!(
                        qp.execute_now(&mut DirectOp::Write { remote: place, data: &data }),
                        Some(Ok(()))
                    );
                    let mut back = vec![0; LEN];
                    assert_eq!(
                        qp.execute_now(&mut DirectOp::Read { remote: place, out: &mut back }),
                        Some(Ok(()))
                    );
                    assert_eq!(back, data);
                    let mut old = 0;
                    let mut op = DirectOp::FetchAdd { remote: buf.remote(0), add: 1, old: &mut old };
                    assert_eq!(qp.execute_now(&mut op), Some(Ok(())));
                }
            });
        }
    });
    assert_eq!(buf.word(0), THREADS as u64 * EACH);
    buf.assert_guards();
}

fn the_end_waits_for_what_is_under_way(config: Config) {
    const LEN: usize = 1 << 20;
    if !is_mapped(config) {
        return;
    }
    for round in 0..20 {
        let pair = pair(config);
        let buf = target(&pair, LEN, EVERYTHING);
        let started = AtomicBool::new(false);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for byte in (1..=u8::MAX).cycle() {
                    let data = [byte; LEN];
                    match pair.a.qp.execute_now(&mut DirectOp::Write { remote: buf.remote(0), data: &data }) {
                        Some(result) => assert_eq!(result, Ok(())),
                        None => return,
                    }
                    started.store(true, Ordering::Release);
                }
            });
            until("the writer to write", || started.load(Ordering::Acquire).then_some(()));
            for _ in 0..round {
                thread::yield_now();
            }
            pair.a.qp.to_error();
            let at_the_end = buf.contents();
            writer.join().expect("no panic");
            assert!(buf.contents() == at_the_end, "something was written after the end");
        });
    }
}
