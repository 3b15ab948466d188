//! Tests of posting: lists, signaling, inline data, limits and states.

use rdmabox::verbs::{
    Access, AtomicOp, AtomicOps, PostErrorReason, QpCaps, QpState, RecvWr, SendOp, SendWr, Sge, WcOpcode,
    WcStatus,
};

use crate::fixture::{
    Config, Provider, SEND, Setup, pair, pattern, read, refused, signaled, unsignaled, write,
};

conformance! {
    a_list_of_everything_completes_in_order,
    an_empty_list_is_nothing,
    a_refused_request_ends_the_list,
    requests_that_are_not_signaled_complete_in_silence,
    inline_buffers_may_be_reused_at_once,
    inline_data_is_refused_like_any_other,
    inline_has_a_limit,
    inline_is_for_sends_and_writes,
    elements_are_limited,
    receive_elements_are_limited,
    messages_are_limited,
    an_atomic_has_one_element_of_eight_bytes,
    an_atomic_that_the_device_lacks_ends_the_list,
    nothing_is_sent_before_the_connection,
    queues_are_at_least_as_large_as_asked_for,
    impossible_queues_are_refused,
    queue_pairs_have_their_own_numbers,
}

fn a_list_of_everything_completes_in_order(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(64 << 10, Access::REMOTE_ALL);
    let local = pair.a.filled(&pattern(1, 64 << 10));
    let results = pair.a.local(64);
    let sges = [local.all()];
    let (small, old, none) = ([local.sge(0, 100)], [results.sge(0, 8)], [local.sge(0, 0)]);
    let word = target.remote(0);
    for id in 0..3 {
        pair.b.recv(id, &[]);
    }
    let list: Vec<SendWr<'_>> = [
        (write(target.remote(0)), &sges),
        (SEND, &none),
        (read(target.remote(0)), &sges),
        (SendOp::Write { remote: target.remote(0), imm: Some(3) }, &small),
        (SendOp::FetchAdd { remote: word, add: 1 }, &old),
        (SendOp::CompareSwap { remote: word, compare: 0, swap: 1 }, &old),
        (SendOp::Send { imm: Some(4) }, &none),
        (write(target.remote(0)), &small),
    ]
    .iter()
    .zip(0..)
    .map(|(&(op, sges), id)| signaled(id, op, sges))
    .collect();
    pair.a.post(&list);
    use WcOpcode::*;
    let opcodes = [RdmaWrite, Send, RdmaRead, RdmaWrite, FetchAdd, CompSwap, Send, RdmaWrite];
    for (id, opcode) in (0..).zip(opcodes) {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (id, WcStatus::Success, opcode));
    }
    for (id, imm) in (0..).zip([None, Some(3), Some(4)]) {
        let wc = pair.received(&pair.b);
        assert_eq!((wc.wr_id, wc.imm), (id, imm));
    }
}

fn an_empty_list_is_nothing(config: Config) {
    let pair = pair(config);
    pair.a.post(&[]);
    pair.a.qp.post_recv(&[]).expect("nothing to refuse");
    pair.assert_quiet();
}

fn a_refused_request_ends_the_list(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let local = pair.a.filled(&[5; 64]);
    let limit = pair.a.qp.caps().max_send_sge;
    let (one, many) = ([local.sge(0, 8)], vec![local.sge(0, 1); limit as usize + 1]);
    let list = [
        signaled(0, write(target.remote(0)), &one),
        signaled(1, write(target.remote(8)), &one),
        signaled(2, write(target.remote(16)), &many),
        signaled(3, write(target.remote(24)), &one),
    ];
    let error = refused(pair.a.qp.post_send(&list));
    assert_eq!(error.posted, 2);
    assert_eq!(error.reason, PostErrorReason::TooManySges { asked: many.len(), limit });
    assert_eq!((pair.sent(&pair.a).wr_id, pair.sent(&pair.a).wr_id), (0, 1));
    pair.assert_quiet();
    assert_eq!((target.get(0, 16), target.get(16, 48)), (vec![5; 16], vec![0; 48]));
    // A refused post breaks nothing.
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    assert_eq!(pair.run(signaled(4, write(target.remote(0)), &one)).status, WcStatus::Success);
}

fn requests_that_are_not_signaled_complete_in_silence(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(100 * 8, Access::REMOTE_ALL);
    let local = pair.a.filled(&pattern(1, 100 * 8));
    let old = pair.a.local(8);
    let sges: Vec<[Sge; 1]> = (0..100).map(|i| [local.sge(i * 8, 8)]).collect();
    for _ in 0..3 {
        target.set(0, &[0; 800]);
        let mut list: Vec<_> =
            (0..99).map(|i| unsignaled(i as u64, write(target.remote(i * 8)), &sges[i])).collect();
        let into = [old.all()];
        list.push(unsignaled(200, read(target.remote(0)), &into));
        list.push(unsignaled(201, SendOp::FetchAdd { remote: target.remote(0), add: 0 }, &into));
        list.push(signaled(99, write(target.remote(99 * 8)), &sges[99]));
        pair.a.post(&list);
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), (99, WcStatus::Success));
        assert!(target.contents() == local.contents());
    }
    pair.assert_quiet();
}

fn inline_wr(wr_id: u64, op: SendOp, bytes: &[u8]) -> SendWr<'_> {
    signaled(wr_id, op, &[]).with_inline(bytes)
}

fn inline_buffers_may_be_reused_at_once(config: Config) {
    let pair = pair(config);
    let limit = pair.a.qp.caps().max_inline_data as usize;
    assert!(limit >= 64);
    let target = pair.b.buf(100 * limit, Access::REMOTE_ALL);
    let messages = pair.b.local(100 * limit);
    for i in 0..100 {
        pair.b.recv(i as u64, &[messages.sge(i * limit, limit)]);
    }
    // Plain memory, registered nowhere.
    let mut bytes = vec![0; limit];
    for i in 0..100 {
        bytes.copy_from_slice(&pattern(i as u64, limit));
        pair.a.post(&[inline_wr(0, write(target.remote(i * limit)), &bytes), inline_wr(1, SEND, &bytes)]);
        bytes.fill(0xff);
    }
    for id in 0..200 {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), (id % 2, WcStatus::Success));
    }
    for i in 0..100 {
        assert_eq!(pair.received(&pair.b).byte_len as usize, limit);
        assert!(target.get(i * limit, limit) == pattern(i as u64, limit));
        assert!(messages.get(i * limit, limit) == pattern(i as u64, limit));
    }
}

fn inline_data_is_refused_like_any_other(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let wc = pair.run(inline_wr(1, write(target.remote(60)), &[1; 5]));
    assert_eq!(wc.status, WcStatus::RemAccessErr);
    assert_eq!(pair.a.qp.state(), QpState::Err);
    target.assert_untouched();
}

fn inline_has_a_limit(config: Config) {
    let pair = Setup::new(config).change_caps(|caps| caps.max_inline_data = 32).pair();
    let limit = pair.a.qp.caps().max_inline_data;
    assert!(limit >= 32);
    let target = pair.b.guarded(4096, Access::REMOTE_ALL);
    let bytes = vec![7; limit as usize + 1];
    for op in [write(target.remote(0)), SEND] {
        let error = refused(pair.a.qp.post_send(&[inline_wr(1, op, &bytes)]));
        let asked = u64::from(limit) + 1;
        assert_eq!((error.posted, error.reason), (0, PostErrorReason::Inline { asked, limit }));
    }
    target.assert_untouched();
    assert_eq!(pair.run(inline_wr(2, write(target.remote(0)), &bytes[1..])).status, WcStatus::Success);
    assert_eq!(pair.run(inline_wr(3, write(target.remote(0)), &[])).status, WcStatus::Success);
    assert!(target.get(0, limit as usize) == bytes[1..]);
}

fn inline_is_for_sends_and_writes(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let remote = target.remote(0);
    let ops = [
        read(remote),
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        SendOp::FetchAdd { remote, add: 1 },
    ];
    let swap = SendOp::FetchOp { remote, op: AtomicOp::Swap(1) };
    let has_swap = pair.a.device.attr().atomic_ops.contains(AtomicOps::SWAP);
    for op in ops.into_iter().chain(has_swap.then_some(swap)) {
        let error = refused(pair.a.qp.post_send(&[inline_wr(1, op, &[0; 8])]));
        assert!(matches!(error.reason, PostErrorReason::Inline { asked: 8, .. }), "{error}");
    }
    pair.assert_quiet();
    target.assert_untouched();
}

fn elements_are_limited(config: Config) {
    let pair = Setup::new(config).change_caps(|caps| caps.max_send_sge = 4).pair();
    let limit = pair.a.qp.caps().max_send_sge;
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let local = pair.a.local(8);
    let sges = vec![local.sge(0, 1); limit as usize + 1];
    for op in [write(target.remote(0)), read(target.remote(0)), SEND] {
        let error = refused(pair.a.qp.post_send(&[signaled(1, op, &sges)]));
        assert_eq!(error.reason, PostErrorReason::TooManySges { asked: sges.len(), limit });
    }
    let wc = pair.run(signaled(1, write(target.remote(0)), &sges[1..]));
    assert_eq!(wc.status, WcStatus::Success);
}

fn receive_elements_are_limited(config: Config) {
    let pair = pair(config);
    let limit = pair.a.qp.caps().max_recv_sge;
    let local = pair.a.local(8);
    let sges = vec![local.sge(0, 1); limit as usize + 1];
    let list = [RecvWr { wr_id: 1, sges: &sges[1..] }, RecvWr { wr_id: 2, sges: &sges }];
    let error = refused(pair.a.qp.post_recv(&list));
    assert_eq!(error.posted, 1);
    assert_eq!(error.reason, PostErrorReason::TooManySges { asked: sges.len(), limit });
}

fn messages_are_limited(config: Config) {
    let pair = pair(config);
    let limit = pair.a.device.attr().max_msg_sz;
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let local = pair.a.local(8);
    let asked = limit + 1;
    let mut sges = Vec::new();
    let mut left = asked;
    while left > 0 {
        let length = u32::try_from(left).unwrap_or(u32::MAX);
        sges.push(Sge { length, ..local.all() });
        left -= u64::from(length);
    }
    assert!(sges.len() <= pair.a.qp.caps().max_send_sge as usize);
    for op in [write(target.remote(0)), read(target.remote(0)), SEND] {
        let error = refused(pair.a.qp.post_send(&[signaled(1, op, &sges)]));
        assert_eq!(error.reason, PostErrorReason::TooLong { asked, limit });
    }
    pair.assert_quiet();
    target.assert_untouched();
}

fn an_atomic_has_one_element_of_eight_bytes(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let local = pair.a.local(32);
    let remote = target.remote(0);
    let shapes =
        [vec![], vec![local.sge(0, 4)], vec![local.sge(0, 16)], vec![local.sge(0, 4), local.sge(4, 4)]];
    let swap = SendOp::FetchOp { remote, op: AtomicOp::Swap(1) };
    let has_swap = pair.a.device.attr().atomic_ops.contains(AtomicOps::SWAP);
    let both = [SendOp::CompareSwap { remote, compare: 0, swap: 1 }, SendOp::FetchAdd { remote, add: 1 }];
    for op in both.into_iter().chain(has_swap.then_some(swap)) {
        for sges in &shapes {
            let error = refused(pair.a.qp.post_send(&[signaled(1, op, sges)]));
            assert_eq!((error.posted, error.reason), (0, PostErrorReason::AtomicShape));
        }
    }
    pair.assert_quiet();
    target.assert_untouched();
}

/// Checks that a list ends before an atomic that the device lacks. A software device has all
/// atomics, and an RDMA device none of these.
fn an_atomic_that_the_device_lacks_ends_the_list(config: Config) {
    use AtomicOp::{And, Max, Min, Or, Swap, Xor};
    let pair = pair(config);
    let has = pair.a.device.attr().atomic_ops;
    let expected = if config.provider == Provider::Rdma { AtomicOps::empty() } else { AtomicOps::all() };
    assert_eq!(has, expected);
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let local = pair.a.filled(&[5; 16]);
    let (data, old) = ([local.sge(0, 8)], [local.sge(8, 8)]);
    let lacking = [Swap(1), And(1), Or(1), Xor(1), Min(1), Max(1)];
    for op in lacking.into_iter().filter(|op| !has.contains(op.kind())) {
        let list = [
            signaled(0, write(target.remote(0)), &data),
            signaled(1, SendOp::FetchOp { remote: target.remote(8), op }, &old),
            signaled(2, write(target.remote(16)), &data),
        ];
        let error = refused(pair.a.qp.post_send(&list));
        assert_eq!((error.posted, error.reason), (1, PostErrorReason::Unsupported(op)));
        assert_eq!(pair.sent(&pair.a).wr_id, 0);
        pair.assert_quiet();
        assert_eq!((target.get(0, 8), target.get(8, 56)), (vec![5; 8], vec![0; 56]));
        // A refused post breaks nothing.
        assert_eq!(pair.a.qp.state(), QpState::Rts);
    }
}

fn nothing_is_sent_before_the_connection(config: Config) {
    let pair = Setup::new(config).apart();
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let local = pair.a.local(8);
    assert_eq!(pair.a.qp.state(), QpState::Init);
    let sges: [Sge; 1] = [local.all()];
    let list = [signaled(1, write(target.remote(0)), &sges), signaled(2, SEND, &sges)];
    let error = refused(pair.a.qp.post_send(&list));
    assert_eq!((error.posted, error.reason), (0, PostErrorReason::State(QpState::Init)));
    pair.connect();
    pair.assert_quiet();
    target.assert_untouched();
    assert_eq!(pair.run(list[0]).status, WcStatus::Success);
}

fn queues_are_at_least_as_large_as_asked_for(config: Config) {
    let sizes = |send_wr, recv_wr, send_sge, recv_sge, inline| {
        let mut caps = QpCaps::default();
        (caps.max_send_wr, caps.max_recv_wr) = (send_wr, recv_wr);
        (caps.max_send_sge, caps.max_recv_sge) = (send_sge, recv_sge);
        caps.max_inline_data = inline;
        caps
    };
    for asked in [sizes(1, 1, 1, 1, 0), sizes(17, 33, 3, 2, 100), QpCaps::default()] {
        let side = Setup::new(config).caps(asked).side();
        let has = side.qp.caps();
        assert!(has.max_send_wr >= asked.max_send_wr && has.max_recv_wr >= asked.max_recv_wr);
        assert!(has.max_send_sge >= asked.max_send_sge && has.max_recv_sge >= asked.max_recv_sge);
        assert!(has.max_inline_data >= asked.max_inline_data);
        assert!(side.device.create_cq(100).expect("completion queue").depth() >= 100);
    }
}

fn impossible_queues_are_refused(config: Config) {
    let side = Setup::new(config).side();
    let attr = side.device.attr().clone();
    let changes: [&dyn Fn(&mut QpCaps); 5] = [
        &|caps| caps.max_send_wr = attr.max_qp_wr + 1,
        &|caps| caps.max_recv_wr = attr.max_qp_wr + 1,
        &|caps| caps.max_send_sge = attr.max_sge + 1,
        &|caps| caps.max_recv_sge = attr.max_sge + 1,
        &|caps| caps.max_inline_data = attr.max_inline_data + 1,
    ];
    for change in changes {
        let mut init = rdmabox::verbs::QpInit::new(side.cq.clone(), side.recv_cq.clone());
        change(&mut init.caps);
        init.progress = config.progress;
        let caps = init.caps;
        let result = side.pd.create_qp(init);
        assert!(matches!(result, Err(rdmabox::verbs::VerbsError::Limit { .. })), "{caps:?}: {result:?}");
    }
    assert!(side.device.create_cq(attr.max_cqe as usize + 1).is_err());
}

fn queue_pairs_have_their_own_numbers(config: Config) {
    let setup = Setup::new(config);
    let side = setup.side();
    let mut numbers = vec![side.qp.qp_num()];
    for _ in 0..20 {
        // Dropped at once: not even then is a number used again.
        numbers.push(setup.qp(&side.pd, &side.cq, &side.recv_cq).qp_num());
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 21);
}
