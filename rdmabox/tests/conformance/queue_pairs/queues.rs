//! Tests of full queues: their capacity, the release of slots, and completion queue overflows.

use rdmabox::verbs::{
    Access, CompletionQueue, PostErrorReason, QpState, RecvWr, SendWr, Sge, VerbsError, WcStatus,
    WorkCompletion,
};

use crate::fixture::{Config, Pair, SEND, Setup, Side, pattern, refused, signaled, unsignaled, until, write};

conformance! {
    a_full_send_queue_is_an_error,
    polling_frees_as_many_slots_as_it_found,
    unsignaled_requests_keep_their_slots_until_a_later_completion_is_polled,
    a_queue_of_unsignaled_requests_stays_full,
    a_full_receive_queue_is_an_error,
    a_polled_receive_makes_room_for_one,
    slots_come_back_for_ever,
    an_overrun_completion_queue_says_so,
}

fn depth(side: &Side) -> usize {
    side.qp.caps().max_send_wr as usize
}

fn assert_full(result: Result<(), rdmabox::verbs::PostError>, posted: usize, depth: usize) {
    let error = refused(result);
    assert_eq!(error.posted, posted);
    assert_eq!(error.reason, PostErrorReason::QueueFull { depth: depth as u32 });
}

/// Polls one completion of `a` and no more.
fn poll_one(pair: &Pair) -> WorkCompletion {
    let mut out = [WorkCompletion::EMPTY];
    until("a completion", || {
        pair.b.pump();
        (pair.a.cq.poll(&mut out).expect("poll") == 1).then_some(())
    });
    out[0]
}

fn a_full_send_queue_is_an_error(config: Config) {
    let pair = Setup::new(config).queues(10, 1).pair();
    let depth = depth(&pair.a);
    let target = pair.b.buf((depth + 3) * 8, Access::REMOTE_ALL);
    let local = pair.a.filled(&pattern(1, (depth + 3) * 8));
    let sges: Vec<[Sge; 1]> = (0..depth + 3).map(|i| [local.sge(i * 8, 8)]).collect();
    let list: Vec<SendWr<'_>> =
        (0..depth + 3).map(|i| signaled(i as u64, write(target.remote(i * 8)), &sges[i])).collect();
    assert_full(pair.a.qp.post_send(&list), depth, depth);
    for _ in 0..3 {
        assert_full(pair.a.qp.post_send(&list[depth..]), 0, depth);
    }
    for id in 0..depth as u64 {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
    }
    pair.assert_quiet();
    assert!(target.get(0, depth * 8) == local.get(0, depth * 8));
    assert!(target.get(depth * 8, 24) == [0; 24]);
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    pair.a.post(&list[depth..]);
}

fn polling_frees_as_many_slots_as_it_found(config: Config) {
    let pair = Setup::new(config).queues(8, 1).pair();
    let depth = depth(&pair.a);
    let target = pair.b.buf(8, Access::REMOTE_ALL);
    let local = pair.a.local(8);
    let sges = [local.all()];
    let one = signaled(1, write(target.remote(0)), &sges);
    pair.a.post(&vec![one; depth]);
    // All may have been executed by now: without a poll that changes nothing.
    for _ in 0..100 {
        pair.b.pump();
        assert_full(pair.a.qp.post_send(&[one]), 0, depth);
    }
    for _ in 0..3 * depth {
        poll_one(&pair);
        assert_full(pair.a.qp.post_send(&[one, one]), 1, depth);
    }
}

fn unsignaled_requests_keep_their_slots_until_a_later_completion_is_polled(config: Config) {
    let pair = Setup::new(config).queues(16, 1).pair();
    let depth = depth(&pair.a);
    let target = pair.b.buf(8, Access::REMOTE_ALL);
    let local = pair.a.local(8);
    let sges = [local.all()];
    let silent = unsignaled(1, write(target.remote(0)), &sges);
    for _ in 0..5 {
        let mut list = vec![silent; depth];
        list[depth / 2 - 1] = signaled(2, write(target.remote(0)), &sges);
        pair.a.post(&list);
        assert_full(pair.a.qp.post_send(&[silent]), 0, depth);
        assert_eq!(poll_one(&pair).wr_id, 2);
        // The first half of the queue is free; the requests behind the signaled one still occupy
        // theirs.
        let mut rest = vec![silent; depth / 2 + 1];
        rest[depth / 2 - 1] = signaled(3, write(target.remote(0)), &sges);
        assert_full(pair.a.qp.post_send(&rest), depth / 2, depth);
        assert_eq!(poll_one(&pair).wr_id, 3);
    }
}

fn a_queue_of_unsignaled_requests_stays_full(config: Config) {
    let pair = Setup::new(config).queues(4, 1).pair();
    let depth = depth(&pair.a);
    let target = pair.b.buf(8, Access::REMOTE_ALL);
    let local = pair.a.filled(&[1; 8]);
    let sges = [local.all()];
    let silent = unsignaled(1, write(target.remote(0)), &sges);
    pair.a.post(&vec![silent; depth]);
    pair.until("the bytes", || (target.contents() == [1; 8]).then_some(()));
    pair.assert_quiet();
    assert_full(pair.a.qp.post_send(&[silent]), 0, depth);
}

fn a_full_receive_queue_is_an_error(config: Config) {
    let pair = Setup::new(config).queues(4, 10).apart();
    let depth = pair.b.qp.caps().max_recv_wr as usize;
    let list: Vec<RecvWr<'_>> = (0..depth + 2).map(|i| RecvWr { wr_id: i as u64, sges: &[] }).collect();
    assert_full(pair.b.qp.post_recv(&list), depth, depth);
    assert_full(pair.b.qp.post_recv(&list[depth..]), 0, depth);
    pair.connect();
    assert_full(pair.b.qp.post_recv(&list[depth..]), 0, depth);
    for id in 0..depth as u64 {
        assert_eq!(pair.run(signaled(1, SEND, &[])).status, WcStatus::Success);
        assert_eq!(pair.received(&pair.b).wr_id, id);
    }
    // The two that were refused are not there.
    pair.a.post(&[signaled(1, SEND, &[])]);
    pair.assert_quiet();
}

fn a_polled_receive_makes_room_for_one(config: Config) {
    let pair = Setup::new(config).queues(4, 4).pair();
    let depth = pair.b.qp.caps().max_recv_wr as usize;
    let one = RecvWr { wr_id: 1, sges: &[] };
    pair.b.qp.post_recv(&vec![one; depth]).expect("room for all");
    for _ in 0..3 * depth {
        assert_eq!(pair.run(signaled(1, SEND, &[])).status, WcStatus::Success);
        pair.received(&pair.b);
        assert_full(pair.b.qp.post_recv(&[one, one]), 1, depth);
    }
}

fn slots_come_back_for_ever(config: Config) {
    let pair = Setup::new(config).queues(7, 5).pair();
    let target = pair.b.buf(8, Access::REMOTE_ALL);
    let local = pair.a.local(8);
    let sges = [local.all()];
    for round in 0..2000 {
        pair.b.recv(round, &[]);
        pair.a.post(&[
            unsignaled(1, write(target.remote(0)), &sges),
            unsignaled(2, SEND, &[]),
            signaled(round, write(target.remote(0)), &sges),
        ]);
        assert_eq!(pair.sent(&pair.a).wr_id, round);
        assert_eq!(pair.received(&pair.b).wr_id, round);
    }
}

fn an_overrun_completion_queue_says_so(config: Config) {
    let pair = Setup::new(config).queues(64, 64).recv_cq_depth(4).pair();
    let cq: &dyn CompletionQueue = &*pair.b.recv_cq;
    let messages = cq.depth() as u64 + 4;
    assert!(messages <= 64);
    for id in 0..messages {
        pair.b.recv(id, &[]);
        pair.a.post(&[signaled(id, SEND, &[])]);
    }
    // The other queue of the peer is polled, this one is not.
    let mut out = [WorkCompletion::EMPTY; 8];
    for _ in 0..messages {
        until("all messages to arrive", || {
            assert_eq!(pair.b.cq.poll(&mut out).expect("poll"), 0);
            pair.a.pump();
            pair.a.take_send()
        });
    }
    // Completions that the queue still holds may come first. It is broken afterwards.
    let mut held = 0;
    let error = loop {
        match cq.poll(&mut out[..1]) {
            Ok(found) => {
                assert_eq!((found, out[0].wr_id, out[0].status), (1, held, WcStatus::Success));
                held += 1;
            }
            Err(error) => break error,
        }
    };
    assert!(held <= cq.depth() as u64);
    assert!(matches!(error, VerbsError::CqOverrun));
    for _ in 0..3 {
        assert!(matches!(cq.poll(&mut out), Err(VerbsError::CqOverrun)));
    }
}
