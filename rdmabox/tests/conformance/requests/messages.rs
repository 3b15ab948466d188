//! Tests of SEND and RECV, immediate data, and WRITE with immediate data.

use rdmabox::verbs::{Access, QpState, SendOp, Sge, WcOpcode, WcStatus};

use crate::fixture::{Config, Provider, SEND, Setup, pair, pattern, signaled, unsignaled, write};

conformance! {
    a_message_fills_the_next_receive,
    immediate_data_travels_along,
    receives_scatter_and_sends_gather,
    messages_arrive_in_order,
    a_send_waits_for_a_receive,
    receives_may_be_posted_before_the_connection,
    a_short_message_leaves_the_rest_of_the_receive_alone,
    a_message_longer_than_its_receive_is_an_error,
    a_receive_into_the_wrong_memory_is_an_error,
    messages_of_no_bytes,
    a_write_with_immediate_data_is_visible_before_its_completion,
    a_write_with_immediate_data_waits_for_a_receive,
    writes_before_a_message_are_visible_after_it,
    a_write_after_a_waiting_send_comes_after_it,
    one_queue_serves_both_directions,
}

fn a_message_fills_the_next_receive(config: Config) {
    let pair = pair(config);
    for (id, len) in (0..).zip([1, 7, 64, 4096, 4097, 100_000, 8 << 20]) {
        let source = pair.a.filled(&pattern(id, len));
        let target = pair.b.guarded(len, Access::LOCAL_WRITE);
        pair.b.recv(100 + id, &[target.all()]);
        let wc = pair.run(signaled(id, SEND, &[source.all()]));
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Send));
        let wc = pair.received(&pair.b);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (100 + id, WcStatus::Success, WcOpcode::Recv));
        assert_eq!((wc.byte_len as usize, wc.imm, wc.qp_num), (len, None, pair.b.qp.qp_num()));
        assert!(target.contents() == source.contents());
        target.assert_guards();
    }
}

fn immediate_data_travels_along(config: Config) {
    let pair = pair(config);
    let buf = pair.b.local(64);
    let source = pair.a.local(64);
    for imm in [None, Some(0), Some(1), Some(0x0102_0304), Some(u32::MAX), None] {
        pair.b.recv(1, &[buf.all()]);
        assert_eq!(pair.run(signaled(2, SendOp::Send { imm }, &[source.all()])).status, WcStatus::Success);
        let wc = pair.received(&pair.b);
        assert_eq!((wc.opcode, wc.imm, wc.byte_len), (WcOpcode::Recv, imm, 64));
    }
}

fn receives_scatter_and_sends_gather(config: Config) {
    let pair = pair(config);
    let data = pattern(1, 1000);
    let source = pair.a.filled(&data);
    let target = pair.b.guarded(1000, Access::LOCAL_WRITE);
    let to = [target.sge(900, 100), target.sge(0, 0), target.sge(0, 333), target.sge(400, 400)];
    let from: Vec<Sge> = (0..20).map(|i| source.sge(i * 40, 40)).collect();
    pair.b.recv(1, &to);
    assert_eq!(pair.run(signaled(1, SEND, &from)).status, WcStatus::Success);
    assert_eq!(pair.received(&pair.b).byte_len, 800);
    assert!(target.get(900, 100) == data[..100]);
    assert!(target.get(0, 333) == data[100..433]);
    assert!(target.get(400, 367) == data[433..800]);
    assert!(target.get(767, 133) == [0; 133], "the end of the last element is not needed");
    target.assert_guards();
}

fn messages_arrive_in_order(config: Config) {
    let pair = Setup::new(config).queues(200, 200).pair();
    let source = pair.a.local(200 * 8);
    let target = pair.b.local(200 * 8);
    for i in 0..200 {
        source.set(i * 8, &(i as u64 * 3).to_le_bytes());
        pair.b.recv(i as u64, &[target.sge(i * 8, 8)]);
    }
    for i in 0..200 {
        let sges = [source.sge(i * 8, 8)];
        // Every tenth is reported.
        let make = if i % 10 == 9 { signaled } else { unsignaled };
        pair.a.post(&[make(i as u64, SEND, &sges)]);
    }
    for i in 0..200 {
        let wc = pair.received(&pair.b);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (i, WcStatus::Success, 8));
    }
    for i in (9..200).step_by(10) {
        assert_eq!(pair.sent(&pair.a).wr_id, i);
    }
    assert!(target.contents() == source.contents());
}

fn a_send_waits_for_a_receive(config: Config) {
    let pair = pair(config);
    let source = pair.a.filled(&pattern(1, 5000));
    let target = pair.b.local(5000);
    for id in 0..3 {
        pair.a.post(&[signaled(id, SEND, &[source.sge(1000 * id as usize, 1000)])]);
    }
    pair.assert_quiet();
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Rts, QpState::Rts));
    for id in 0..3 {
        pair.b.recv(10 + id, &[target.sge(1000 * id as usize, 1000)]);
        assert_eq!(pair.received(&pair.b).wr_id, 10 + id);
        assert_eq!(pair.sent(&pair.a).wr_id, id);
    }
    assert!(target.get(0, 3000) == source.get(0, 3000));
}

fn receives_may_be_posted_before_the_connection(config: Config) {
    let pair = Setup::new(config).apart();
    let target = pair.b.local(64);
    pair.b.recv(5, &[target.all()]);
    assert_eq!(pair.b.qp.state(), QpState::Init);
    pair.connect();
    let source = pair.a.filled(&pattern(1, 64));
    assert_eq!(pair.run(signaled(1, SEND, &[source.all()])).status, WcStatus::Success);
    assert_eq!(pair.received(&pair.b).wr_id, 5);
    assert!(target.contents() == source.contents());
}

fn a_short_message_leaves_the_rest_of_the_receive_alone(config: Config) {
    let pair = pair(config);
    let source = pair.a.filled(&pattern(1, 100));
    let target = pair.b.guarded(4096, Access::LOCAL_WRITE);
    target.set(0, &[7; 4096]);
    pair.b.recv(1, &[target.all()]);
    pair.b.recv(2, &[target.sge(2048, 2048)]);
    pair.a.post(&[signaled(1, SEND, &[source.all()]), signaled(2, SEND, &[source.sge(0, 1)])]);
    assert_eq!(pair.received(&pair.b).byte_len, 100);
    assert_eq!(pair.received(&pair.b).byte_len, 1);
    let mut expected = vec![7; 4096];
    expected[..100].copy_from_slice(&source.contents());
    expected[2048] = source.get(0, 1)[0];
    assert!(target.contents() == expected);
}

fn a_message_longer_than_its_receive_is_an_error(config: Config) {
    let pair = pair(config);
    let source = pair.a.filled(&pattern(1, 1000));
    let target = pair.b.guarded(2000, Access::LOCAL_WRITE);
    pair.b.recv(1, &[target.sge(0, 999)]);
    pair.b.recv(2, &[target.sge(1000, 1000)]);
    pair.a.post(&[signaled(1, SEND, &[source.all()]), unsignaled(2, SEND, &[source.all()])]);
    let arrived = pair.received(&pair.b).status;
    let wc = pair.received(&pair.b);
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlushErr));
    let wc = pair.sent(&pair.a);
    assert_eq!(wc.wr_id, 1);
    match config.provider {
        // Soft-RoCE (Linux 6.1) reports it as a receive whose memory is not registered.
        Provider::Rdma if arrived != WcStatus::LocLenErr => {
            assert_eq!((arrived, wc.status), (WcStatus::LocProtErr, WcStatus::RemOpErr));
        }
        _ => assert_eq!((arrived, wc.status), (WcStatus::LocLenErr, WcStatus::RemInvReqErr)),
    }
    let wc = pair.sent(&pair.a);
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlushErr));
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
    assert!(target.get(999, 1001) == [0; 1001], "no byte past the receive");
    target.assert_guards();
}

fn a_receive_into_the_wrong_memory_is_an_error(config: Config) {
    for wrong in 0..3 {
        let pair = pair(config);
        let source = pair.a.filled(&pattern(1, 64));
        let access = if wrong == 0 { Access::REMOTE_READ } else { Access::LOCAL_WRITE };
        let target = pair.b.guarded(64, access);
        let sge = match wrong {
            0 => target.all(),
            1 => Sge { lkey: !target.mr.lkey(), ..target.all() },
            _ => target.sge(1, 64),
        };
        pair.b.recv(1, &[sge]);
        pair.a.post(&[signaled(1, SEND, &[source.all()])]);
        assert_eq!(pair.received(&pair.b).status, WcStatus::LocProtErr);
        assert_eq!(pair.sent(&pair.a).status, WcStatus::RemOpErr);
        target.assert_untouched();
    }
}

fn messages_of_no_bytes(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    for sges in [&[target.all()][..], &[]] {
        pair.b.recv(1, sges);
        pair.b.recv(2, sges);
        assert_eq!(pair.run(signaled(1, SEND, &[])).status, WcStatus::Success);
        let imm = SendOp::Write { remote: target.remote(0), imm: Some(9) };
        assert_eq!(pair.run(signaled(2, imm, &[])).status, WcStatus::Success);
        let wc = pair.received(&pair.b);
        assert_eq!((wc.wr_id, wc.byte_len, wc.opcode), (1, 0, WcOpcode::Recv));
        let wc = pair.received(&pair.b);
        assert_eq!((wc.wr_id, wc.byte_len, wc.opcode), (2, 0, WcOpcode::RecvRdmaWithImm));
        assert_eq!(wc.imm, Some(9));
    }
    target.assert_untouched();
}

fn a_write_with_immediate_data_is_visible_before_its_completion(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(1 << 20, Access::REMOTE_ALL);
    let unused = pair.b.guarded(64, Access::LOCAL_WRITE);
    let source = pair.a.local(1 << 20);
    for (id, len) in (0u32..).zip([1, 64, 4096, 100_001, 1 << 20, 3, 70_000]) {
        let data = pattern(u64::from(id) + 50, len);
        source.set(0, &data);
        // The receive is consumed; its memory is not used, and it needs none.
        let sges = [unused.all()];
        pair.b.recv(u64::from(id), if id % 2 == 0 { &sges } else { &[] });
        let op = SendOp::Write { remote: target.remote(0), imm: Some(id) };
        pair.a.post(&[signaled(7, op, &[source.sge(0, len)])]);
        let wc = pair.received(&pair.b);
        assert!(target.get(0, len) == data);
        assert_eq!((wc.wr_id, wc.status), (u64::from(id), WcStatus::Success));
        assert_eq!((wc.opcode, wc.imm), (WcOpcode::RecvRdmaWithImm, Some(id)));
        assert_eq!(wc.byte_len as usize, len);
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::RdmaWrite));
    }
    unused.assert_untouched();
    target.assert_guards();
}

fn a_write_with_immediate_data_waits_for_a_receive(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let source = pair.a.filled(&pattern(1, 64));
    let op = SendOp::Write { remote: target.remote(0), imm: Some(1) };
    pair.a.post(&[signaled(1, op, &[source.all()])]);
    pair.assert_quiet();
    pair.b.recv(1, &[]);
    assert_eq!(pair.received(&pair.b).imm, Some(1));
    assert_eq!(pair.sent(&pair.a).status, WcStatus::Success);
    assert!(target.contents() == source.contents());
}

fn writes_before_a_message_are_visible_after_it(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(1 << 20, Access::REMOTE_ALL);
    let source = pair.a.local(1 << 20);
    for round in 0..20 {
        let data = pattern(round, 1 << 20);
        source.set(0, &data);
        pair.b.recv(round, &[]);
        let sges = [source.all()];
        pair.a.post(&[unsignaled(1, write(target.remote(0)), &sges), signaled(2, SEND, &[])]);
        assert_eq!(pair.received(&pair.b).wr_id, round);
        assert!(target.contents() == data);
        assert_eq!(pair.sent(&pair.a).wr_id, 2);
    }
}

fn a_write_after_a_waiting_send_comes_after_it(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let source = pair.a.filled(&pattern(1, 64));
    let sges = [source.all()];
    pair.a.post(&[signaled(1, SEND, &[]), signaled(2, write(target.remote(0)), &sges)]);
    pair.a.post(&[signaled(3, write(target.remote(0)), &sges)]);
    pair.assert_quiet();
    assert_eq!(target.contents(), [0; 64], "requests of a queue pair are executed in order");
    pair.b.recv(1, &[]);
    for id in 1..4 {
        assert_eq!(pair.sent(&pair.a).wr_id, id);
    }
    assert!(target.contents() == source.contents());
}

fn one_queue_serves_both_directions(config: Config) {
    let pair = Setup::new(config).one_cq().pair();
    let (left, right) = (pair.a.local(64), pair.b.local(64));
    for id in 0..50 {
        pair.a.recv(1000 + id, &[left.sge(0, 32)]);
        pair.b.recv(1000 + id, &[right.sge(0, 32)]);
        pair.a.post(&[signaled(id, SEND, &[left.sge(32, 32)])]);
        pair.b.post(&[signaled(id, SEND, &[right.sge(32, 32)])]);
        for side in [&pair.a, &pair.b] {
            let mut seen = [pair.sent(side), pair.sent(side)];
            seen.sort_by_key(|wc| wc.wr_id);
            assert_eq!(seen.map(|wc| wc.wr_id), [id, 1000 + id]);
            assert_eq!(seen.map(|wc| wc.opcode), [WcOpcode::Send, WcOpcode::Recv]);
        }
    }
}
