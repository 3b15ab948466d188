//! Tests of the error state: the flushed requests, their order, and the effect on the peer.

use rdmabox::verbs::{Access, QpState, WcStatus, WorkCompletion};

use crate::fixture::{
    Config, Pair, SEND, Setup, Side, pair, pattern, read, signaled, unsignaled, until, write,
};

conformance! {
    everything_outstanding_is_flushed_once_and_in_order,
    posts_in_the_error_state_are_flushed,
    a_queue_pair_that_never_connected_flushes_its_receives,
    the_peer_of_a_failed_queue_pair_fails,
    the_peer_of_a_dropped_queue_pair_fails,
    an_idle_queue_pair_learns_that_its_peer_is_gone,
    a_peer_that_goes_while_its_message_waits_is_noticed,
    flushed_slots_are_free_again,
    completed_requests_stay_completed,
    a_large_request_is_cut_off,
    completions_survive_their_queue_pair,
    failing_twice_is_failing_once,
    memory_of_flushed_requests_is_left_alone,
    one_failure_leaves_other_queue_pairs_alone,
}

/// Returns the next `count` completions of sends.
fn sends(pair: &Pair, side: &Side, count: usize) -> Vec<(u64, WcStatus)> {
    (0..count).map(|_| pair.sent(side)).map(|wc: WorkCompletion| (wc.wr_id, wc.status)).collect()
}

fn recvs(pair: &Pair, side: &Side, count: usize) -> Vec<(u64, WcStatus)> {
    (0..count).map(|_| pair.received(side)).map(|wc| (wc.wr_id, wc.status)).collect()
}

fn flushed(ids: impl Iterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.map(|id| (id, WcStatus::WrFlushErr)).collect()
}

/// Posts sends that cannot complete, every second one unsignaled, because the peer posts no
/// receive.
fn post_stuck(side: &Side, ids: std::ops::Range<u64>) {
    for id in ids {
        let make = if id % 2 == 0 { signaled } else { unsignaled };
        side.post(&[make(id, SEND, &[])]);
    }
}

/// Asserts the completions of a side whose peer has gone away.
fn assert_gone(completions: &[(u64, WcStatus)], ids: std::ops::Range<u64>) {
    assert_eq!(completions.iter().map(|c| c.0).collect::<Vec<_>>(), ids.collect::<Vec<_>>());
    for (index, (_, status)) in completions.iter().enumerate() {
        let first = index == 0 && *status == WcStatus::RetryExcErr;
        assert!(first || *status == WcStatus::WrFlushErr, "request {index}: {status:?}");
    }
}

fn everything_outstanding_is_flushed_once_and_in_order(config: Config) {
    let pair = Setup::new(config).queues(32, 32).pair();
    post_stuck(&pair.a, 0..9);
    for id in 100..105 {
        pair.a.recv(id, &[]);
    }
    pair.assert_quiet();
    pair.a.qp.to_error();
    assert_eq!(pair.a.qp.state(), QpState::Err);
    assert_eq!(sends(&pair, &pair.a, 9), flushed(0..9));
    assert_eq!(recvs(&pair, &pair.a, 5), flushed(100..105));
    pair.assert_quiet();
}

fn posts_in_the_error_state_are_flushed(config: Config) {
    let pair = Setup::new(config).queues(32, 32).pair();
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let local = pair.a.filled(&[1; 8]);
    pair.a.qp.to_error();
    let sges = [local.all()];
    pair.a.post(&[
        signaled(1, write(target.remote(0)), &sges),
        unsignaled(2, read(target.remote(0)), &sges),
        unsignaled(3, SEND, &sges),
    ]);
    pair.a.recv(10, &sges);
    pair.a.recv(11, &sges);
    assert_eq!(sends(&pair, &pair.a, 3), flushed(1..4));
    assert_eq!(recvs(&pair, &pair.a, 2), flushed(10..12));
    pair.assert_quiet();
    target.assert_untouched();
}

fn a_queue_pair_that_never_connected_flushes_its_receives(config: Config) {
    let pair = Setup::new(config).apart();
    pair.a.recv(1, &[]);
    pair.a.recv(2, &[]);
    pair.a.qp.to_error();
    assert_eq!(recvs(&pair, &pair.a, 2), flushed(1..3));
    pair.a.post(&[signaled(3, SEND, &[])]);
    assert_eq!(sends(&pair, &pair.a, 1), flushed(3..4));
    pair.assert_quiet();
}

fn the_peer_of_a_failed_queue_pair_fails(config: Config) {
    let pair = Setup::new(config).queues(32, 32).pair();
    post_stuck(&pair.b, 0..6);
    for id in 100..104 {
        pair.b.recv(id, &[]);
    }
    pair.assert_quiet();
    pair.a.qp.to_error();
    assert_gone(&sends(&pair, &pair.b, 6), 0..6);
    assert_eq!(recvs(&pair, &pair.b, 4), flushed(100..104));
    assert_eq!(pair.b.qp.state(), QpState::Err);
    post_stuck(&pair.b, 6..8);
    assert_eq!(sends(&pair, &pair.b, 2), flushed(6..8));
    pair.assert_quiet();
}

fn the_peer_of_a_dropped_queue_pair_fails(config: Config) {
    let Pair { a, b, .. } = Setup::new(config).queues(32, 32).pair();
    post_stuck(&b, 0..4);
    b.recv(100, &[]);
    drop(a);
    let gone: Vec<_> = (0..4)
        .map(|_| {
            until("a completion", || {
                b.pump();
                b.take_send()
            })
        })
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    assert_gone(&gone, 0..4);
    let wc = until("a completion", || {
        b.pump();
        b.take_recv()
    });
    assert_eq!((wc.wr_id, wc.status), (100, WcStatus::WrFlushErr));
    assert_eq!(b.qp.state(), QpState::Err);
}

fn an_idle_queue_pair_learns_that_its_peer_is_gone(config: Config) {
    let pair = pair(config);
    pair.a.qp.to_error();
    pair.until("the other end to fail", || (pair.b.qp.state() == QpState::Err).then_some(()));
    let target = pair.a.guarded(64, Access::REMOTE_ALL);
    let local = pair.b.filled(&[1; 8]);
    pair.b.post(&[signaled(1, write(target.remote(0)), &[local.all()])]);
    assert_eq!(sends(&pair, &pair.b, 1), flushed(1..2));
    target.assert_untouched();
}

fn a_peer_that_goes_while_its_message_waits_is_noticed(config: Config) {
    for dropped in [false, true] {
        for outstanding in [false, true] {
            let Pair { a, b, .. } = pair(config);
            if outstanding {
                post_stuck(&a, 0..3);
            }
            post_stuck(&b, 0..2);
            for _ in 0..500 {
                a.pump();
                b.pump();
                std::thread::yield_now();
            }
            match dropped {
                true => drop(b),
                false => b.qp.to_error(),
            }
            until("the end whose peer is gone to fail", || {
                a.pump();
                (a.qp.state() == QpState::Err).then_some(())
            });
            let expected = if outstanding { 3 } else { 0 };
            let mut completions = Vec::new();
            // An engine changes the state first, and flushes then.
            until("everything to be flushed", || {
                a.pump();
                completions.extend(a.take_send().map(|wc| (wc.wr_id, wc.status)));
                (completions.len() == expected as usize).then_some(())
            });
            a.pump();
            assert_eq!(a.pending(), []);
            assert_gone(&completions, 0..expected);
            a.recv(7, &[]);
            a.pump();
            let wc = a.take_recv().expect("flushed at once");
            assert_eq!((wc.wr_id, wc.status), (7, WcStatus::WrFlushErr));
        }
    }
}

fn flushed_slots_are_free_again(config: Config) {
    let pair = Setup::new(config).queues(8, 8).pair();
    let caps = pair.a.qp.caps();
    pair.a.qp.to_error();
    for round in 0..10 {
        let first = round * u64::from(caps.max_send_wr);
        let ids = first..first + u64::from(caps.max_send_wr);
        for id in ids.clone() {
            pair.a.post(&[unsignaled(id, SEND, &[])]);
        }
        for id in 0..u64::from(caps.max_recv_wr) {
            pair.a.recv(id, &[]);
        }
        assert_eq!(sends(&pair, &pair.a, caps.max_send_wr as usize), flushed(ids));
        let count = caps.max_recv_wr as usize;
        assert_eq!(recvs(&pair, &pair.a, count), flushed(0..count as u64));
    }
}

fn completed_requests_stay_completed(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let local = pair.a.filled(&[1; 8]);
    pair.b.recv(7, &[]);
    assert_eq!(pair.run(signaled(1, write(target.remote(0)), &[local.all()])).status, WcStatus::Success);
    assert_eq!(pair.run(signaled(2, SEND, &[])).status, WcStatus::Success);
    // The receive is complete as well, polled or not.
    pair.a.qp.to_error();
    pair.b.qp.to_error();
    let wc = pair.received(&pair.b);
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Success));
    pair.assert_quiet();
    assert_eq!(target.get(0, 8), [1; 8]);
}

fn a_large_request_is_cut_off(config: Config) {
    let pair = pair(config);
    let len = usize::try_from(pair.a.device.attr().max_msg_sz).map_or(16 << 20, |most| most.min(16 << 20));
    let target = pair.b.guarded(len, Access::REMOTE_ALL);
    let (source, into) = (pair.a.filled(&pattern(1, len)), pair.a.guarded(len, Access::LOCAL_WRITE));
    pair.b.recv(9, &[]);
    pair.a.post(&[
        signaled(1, write(target.remote(0)), &[source.all()]),
        signaled(2, read(target.remote(0)), &[into.all()]),
    ]);
    pair.b.qp.to_error();
    let after_return = target.contents();
    let completions = sends(&pair, &pair.a, 2);
    assert_eq!(completions.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 2]);
    if config.is_tcp() {
        assert_ne!(completions[1].1, WcStatus::Success);
        assert!(target.contents() == after_return, "nothing lands after to_error has returned");
    }
    if completions[0].1 != WcStatus::Success {
        assert_eq!(completions[1].1, WcStatus::WrFlushErr);
    }
    assert_eq!(recvs(&pair, &pair.b, 1), flushed(9..10));
    pair.assert_quiet();
    target.assert_guards();
    into.assert_guards();
}

fn completions_survive_their_queue_pair(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(8, Access::REMOTE_ALL);
    let local = pair.a.filled(&[1; 8]);
    pair.a.post(&[signaled(1, write(target.remote(0)), &[local.all()])]);
    // Polled into the queue, or still on its way: gone or complete, but never wrong.
    let Pair { a, b, .. } = pair;
    let Side { qp, cq, .. } = a;
    until("the bytes", || {
        b.pump();
        (target.contents() == [1; 8]).then_some(())
    });
    drop(qp);
    let mut out = [WorkCompletion::EMPTY; 4];
    let found = cq.poll(&mut out).expect("poll");
    assert!(found <= 1);
    if found == 1 {
        assert_eq!(out[0].wr_id, 1);
    }
}

fn failing_twice_is_failing_once(config: Config) {
    let pair = pair(config);
    pair.a.recv(1, &[]);
    pair.a.qp.to_error();
    pair.a.qp.to_error();
    pair.b.qp.to_error();
    assert_eq!(recvs(&pair, &pair.a, 1), flushed(1..2));
    pair.a.qp.to_error();
    pair.assert_quiet();
}

fn memory_of_flushed_requests_is_left_alone(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(4096, Access::LOCAL_WRITE);
    let source = pair.a.filled(&pattern(1, 4096));
    pair.b.recv(1, &[target.all()]);
    pair.b.qp.to_error();
    pair.a.post(&[signaled(1, SEND, &[source.all()])]);
    assert_gone(&sends(&pair, &pair.a, 1), 1..2);
    assert_eq!(recvs(&pair, &pair.b, 1), flushed(1..2));
    target.assert_untouched();
}

fn one_failure_leaves_other_queue_pairs_alone(config: Config) {
    let setup = Setup::new(config);
    let pair = setup.pair();
    // A second connection between the same hosts, on the same completion queues.
    let second_a = setup.qp(&pair.a.pd, &pair.a.cq, &pair.a.recv_cq);
    let second_b = setup.qp(&pair.b.pd, &pair.b.cq, &pair.b.recv_cq);
    crate::fixture::connect(config, &second_a, &second_b);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let local = pair.a.filled(&[1; 8]);
    let nowhere = rdmabox::verbs::RemoteAddr { rkey: !target.mr.rkey(), ..target.remote(0) };
    assert_eq!(pair.run(signaled(1, write(nowhere), &[local.all()])).status, WcStatus::RemAccessErr);
    pair.until("the other end to fail", || (pair.b.qp.state() == QpState::Err).then_some(()));
    assert_eq!((second_a.state(), second_b.state()), (QpState::Rts, QpState::Rts));
    second_a.post_send(&[signaled(2, write(target.remote(0)), &[local.all()])]).expect("post_send");
    let wc = pair.sent(&pair.a);
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (2, WcStatus::Success, second_a.qp_num()));
    assert_eq!(target.get(0, 8), [1; 8]);
}
