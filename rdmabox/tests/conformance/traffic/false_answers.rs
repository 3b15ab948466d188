//! Tests of a peer that sends unsolicited, premature or impossible answers: each request
//! completes once and in order, and none with a false answer succeeds.

use std::{hint::spin_loop, thread};

use rdmabox::verbs::{Access, QpState, RemoteAddr, SendOp, SendWr, Sge, WcStatus};

use crate::{
    fixture::{Config, Setup, pattern, read, signaled, unsignaled, until, write},
    raw::{ACK_WANTED, Frame, IMM, MAX_MESSAGE, PLACED, RawPeer, ends, quiet, recvs, sends},
};

software_conformance! {
    a_failure_waits_for_its_turn,
    a_failure_in_line_does_not_change_how_the_end_is_reported,
    posts_that_race_with_the_end_keep_their_order,
    an_answer_to_what_was_not_sent_is_no_answer,
    a_refusal_behind_what_was_not_sent_does_not_complete_it,
    a_refusal_of_what_was_not_asked_completes_nothing,
    nothing_leaves_after_the_completion,
    answers_that_fit_nothing_complete_nothing,
    a_refusal_is_never_a_success,
    frames_that_cannot_be_true_end_the_connection,
    a_peer_that_shares_memory_cannot_place_everything,
    a_reset_in_the_middle_of_a_payload,
}

/// A place that the peer claims to have.
const SOMEWHERE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 0x101 };
const NO_MEMORY: Sge = Sge { addr: 0, length: 64, lkey: 0 };
const LARGE: usize = 64 << 20;

fn add(remote: RemoteAddr) -> SendOp {
    SendOp::FetchAdd { remote, add: 1 }
}

fn ids(completions: &[(u64, WcStatus)]) -> Vec<u64> {
    completions.iter().map(|c| c.0).collect()
}

#[track_caller]
fn assert_none_succeeded(completions: &[(u64, WcStatus)]) {
    assert!(completions.iter().all(|c| c.1 != WcStatus::Success), "{completions:?}");
}

fn a_failure_waits_for_its_turn(config: Config) {
    for many in [false, true] {
        let side = Setup::new(config).side();
        let peer = RawPeer::meet(config, &side);
        let local = side.local(64);
        let (good, bad) = ([local.all()], [NO_MEMORY]);
        let list = [
            signaled(1, write(SOMEWHERE), &good),
            signaled(2, write(SOMEWHERE), &bad),
            signaled(3, write(SOMEWHERE), &good),
        ];
        if many {
            side.post(&list);
        } else {
            list.iter().for_each(|wr| side.post(std::slice::from_ref(wr)));
        }
        quiet(&side);
        peer.say(&Frame::ack(0).bytes());
        let expected = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(sends(&side, 3), expected);
        assert_eq!(side.qp.state(), QpState::Err);
        quiet(&side);
    }
}

fn a_failure_in_line_does_not_change_how_the_end_is_reported(config: Config) {
    for peer_goes in [false, true] {
        let side = Setup::new(config).side();
        let peer = RawPeer::meet(config, &side);
        let local = side.local(64);
        let (good, bad) = ([local.all()], [NO_MEMORY]);
        side.post(&[unsignaled(1, read(SOMEWHERE), &good), signaled(2, write(SOMEWHERE), &good)]);
        side.post(&[unsignaled(3, write(SOMEWHERE), &bad)]);
        side.post(&[signaled(4, read(SOMEWHERE), &good), unsignaled(5, write(SOMEWHERE), &bad)]);
        quiet(&side);
        match peer_goes {
            true => drop(peer),
            false => side.qp.to_error(),
        }
        let completions = sends(&side, 5);
        assert_eq!(ids(&completions), [1, 2, 3, 4, 5]);
        assert_none_succeeded(&completions);
        assert_eq!(completions[1].1, WcStatus::WrFlushErr);
        quiet(&side);
    }
}

fn posts_that_race_with_the_end_keep_their_order(config: Config) {
    const REQUESTS: u64 = 200;
    for round in 0..150 {
        let side = Setup::new(config).side();
        let _peer = RawPeer::meet(config, &side);
        let local = side.local(64);
        let sges = [local.all()];
        let list: Vec<SendWr<'_>> = (0..REQUESTS).map(|id| signaled(id, write(SOMEWHERE), &sges)).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..(round % 50) * 20).for_each(|_| spin_loop());
                side.qp.to_error();
            });
            let at_once = [1, 7, 200][round % 3];
            list.chunks(at_once).for_each(|part| side.post(part));
        });
        let expected: Vec<_> = (0..REQUESTS).map(|id| (id, WcStatus::WrFlushErr)).collect();
        assert_eq!(sends(&side, REQUESTS as usize), expected);
        assert_eq!(side.qp.state(), QpState::Err);
        side.pump();
        assert_eq!(side.pending(), []);
    }
}

fn an_answer_to_what_was_not_sent_is_no_answer(config: Config) {
    // The first of them is a WRITE that no socket takes as a whole.
    let lies = [
        Frame::ack(0),
        Frame::ack(1),
        Frame::read_response(1, 64),
        Frame::read_response(0, LARGE as u32),
        Frame::atomic_response(2),
    ];
    for lie in lies {
        let side = Setup::new(config).side();
        let peer = RawPeer::meet(config, &side);
        let (large, local) = (side.local(LARGE), side.guarded(72, Access::LOCAL_WRITE));
        side.post(&[
            signaled(1, write(SOMEWHERE), &[large.all()]),
            signaled(2, read(SOMEWHERE), &[local.sge(0, 64)]),
            signaled(3, add(SOMEWHERE), &[local.sge(64, 8)]),
        ]);
        peer.say(&lie.bytes());
        peer.try_say(&[0xff; 64]);
        ends(&side, "the end of a connection with a liar");
        let completions = sends(&side, 3);
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(completions, [(1, WcStatus::GeneralErr), (2, flushed), (3, flushed)], "{lie:?}");
        quiet(&side);
        local.assert_untouched();
    }
}

fn a_refusal_behind_what_was_not_sent_does_not_complete_it(config: Config) {
    for status in [WcStatus::RemAccessErr, WcStatus::Success] {
        let side = Setup::new(config).side();
        let peer = RawPeer::meet(config, &side);
        let (large, local) = (side.local(LARGE), side.local(64));
        side.post(&[
            signaled(1, write(SOMEWHERE), &[large.all()]),
            signaled(2, write(SOMEWHERE), &[local.all()]),
        ]);
        peer.say(&Frame::nak(1, status).bytes());
        ends(&side, "the end of a connection that is refused");
        let completions = sends(&side, 2);
        assert_eq!(ids(&completions), [1, 2]);
        assert_none_succeeded(&completions);
        quiet(&side);
    }
}

fn a_refusal_of_what_was_not_asked_completes_nothing(config: Config) {
    for requests in [1, 3] {
        let side = Setup::new(config).side();
        let peer = RawPeer::meet(config, &side);
        let local = side.local(64);
        let sges = [local.all()];
        for id in 0..requests {
            side.post(&[signaled(id, write(SOMEWHERE), &sges)]);
        }
        peer.say(&Frame::nak(requests as u32, WcStatus::RemAccessErr).bytes());
        ends(&side, "the end of a connection with a liar");
        let completions = sends(&side, requests as usize);
        assert_eq!(ids(&completions), (0..requests).collect::<Vec<_>>());
        assert_none_succeeded(&completions);
        quiet(&side);
    }
}

fn nothing_leaves_after_the_completion(config: Config) {
    let side = Setup::new(config).side();
    let peer = RawPeer::meet(config, &side);
    let large = side.local(LARGE);
    side.post(&[signaled(1, write(SOMEWHERE), &[large.all()])]);
    peer.say(&Frame::ack(0).bytes());
    assert_none_succeeded(&sends(&side, 1));
    // The memory is its owner's again.
    large.set(0, &vec![0xee; LARGE]);
    let mut heard = Vec::new();
    until("the end of the stream", || {
        side.pump();
        (!peer.hear(&mut heard)).then_some(())
    });
    assert!(heard.len() < LARGE, "the request was cut off");
    assert!(heard.iter().all(|&byte| byte != 0xee), "bytes were sent from memory that was given back");
}

fn answers_that_fit_nothing_complete_nothing(config: Config) {
    let refused = WcStatus::RemAccessErr;
    let (w, r, a): (SendOp, SendOp, SendOp) = (write(SOMEWHERE), read(SOMEWHERE), add(SOMEWHERE));
    let cases: &[(&[SendOp], Frame)] = &[
        (&[r], Frame::ack(0)),
        (&[a], Frame::ack(0)),
        (&[r, w], Frame::ack(1)),
        (&[r, w, w], Frame::nak(1, refused)),
        (&[r], Frame::ack(1)),
        (&[w], Frame::ack(1)),
        (&[w], Frame::ack(5)),
        (&[r], Frame::nak(1, refused)),
        (&[w], Frame::nak(5, refused)),
        (&[w], Frame::nak(u32::MAX, refused)),
        (&[r], Frame::nak(u32::MAX, WcStatus::Success)),
        (&[w], Frame::nak(1 << 31, refused)),
        (&[w], Frame::read_response(0, 8)),
        (&[w], Frame::read_response(0, 0)),
        (&[r], Frame::read_response(0, 7)),
        (&[r], Frame::read_response(0, 9)),
        (&[r], Frame::read_response(1, 8)),
        (&[r, r], Frame::read_response(1, 8)),
        (&[a], Frame::read_response(0, 8)),
        (&[r], Frame::atomic_response(0)),
        (&[w], Frame::atomic_response(0)),
        (&[a, a], Frame::atomic_response(1)),
        (&[], Frame::ack(0)),
        (&[], Frame::nak(0, refused)),
        (&[], Frame::read_response(0, 0)),
        (&[], Frame::atomic_response(0)),
    ];
    for (ops, answer) in cases {
        let side = Setup::new(config).side();
        let peer = RawPeer::meet(config, &side);
        let local = side.guarded(8, Access::LOCAL_WRITE);
        let sges = [local.all()];
        for (id, op) in ops.iter().enumerate() {
            side.post(&[signaled(id as u64, *op, &sges)]);
        }
        side.recv(100, &[]);
        peer.say(&answer.bytes());
        peer.try_say(&[0xff; 16]);
        ends(&side, "the end of a connection with a wrong answer");
        let completions = sends(&side, ops.len());
        assert_eq!(ids(&completions), (0..ops.len() as u64).collect::<Vec<_>>(), "{answer:?}");
        assert!(completions.iter().all(|c| c.1 != WcStatus::Success), "{answer:?}: {completions:?}");
        assert_eq!(recvs(&side, 1), [(100, WcStatus::WrFlushErr)]);
        quiet(&side);
        local.assert_untouched();
    }
}

fn a_refusal_is_never_a_success(config: Config) {
    for op in [write(SOMEWHERE), read(SOMEWHERE), add(SOMEWHERE), SendOp::Send { imm: None }] {
        for (said, reported) in
            [(WcStatus::Success, WcStatus::GeneralErr), (WcStatus::RemAccessErr, WcStatus::RemAccessErr)]
        {
            let side = Setup::new(config).side();
            let peer = RawPeer::meet(config, &side);
            let local = side.guarded(8, Access::LOCAL_WRITE);
            let sges = [local.all()];
            side.post(&[signaled(1, op, &sges), unsignaled(2, op, &sges)]);
            peer.say(&Frame::nak(0, said).bytes());
            assert_eq!(sends(&side, 2), [(1, reported), (2, WcStatus::WrFlushErr)]);
            assert_eq!(side.qp.state(), QpState::Err);
            quiet(&side);
            local.assert_untouched();
        }
    }
}

/// Says `lie` to a fresh side: the receive that it has is flushed, the request that it has fails.
fn assert_ends(config: Config, lie: Frame, meet: fn(Config, &crate::fixture::Side) -> RawPeer) {
    let side = Setup::new(config).side();
    let peer = meet(config, &side);
    let memory = side.guarded(4096, Access::REMOTE_ALL);
    side.recv(7, &[memory.all()]);
    side.post(&[signaled(1, SendOp::Send { imm: None }, &[])]);
    let mut bytes = Frame { rkey: memory.mr.rkey(), addr: memory.mr.addr(), ..lie }.bytes().to_vec();
    bytes.extend([0xff; 256]);
    peer.say(&bytes);
    ends(&side, "the end of a connection with a liar");
    assert_eq!(recvs(&side, 1), [(7, WcStatus::WrFlushErr)], "{lie:?}");
    assert_eq!(sends(&side, 1), [(1, WcStatus::GeneralErr)], "{lie:?}");
    quiet(&side);
    memory.assert_untouched();
}

fn frames_that_cannot_be_true_end_the_connection(config: Config) {
    let write = Frame { imm: 7, flags: IMM, ..Frame::write(0) };
    let placed = Frame { flags: PLACED, ..Frame::write(0) };
    let lies = [
        // The receiver is told the length of the placed data.
        Frame { flags: IMM | PLACED, arg0: 16 << 20, ..write },
        Frame { flags: IMM | PLACED | ACK_WANTED, arg0: u64::MAX, ..write },
        Frame { flags: IMM | PLACED, ..write },
        Frame { flags: IMM | PLACED, payload: 8, ..write },
        placed,
        Frame { payload: 8, ..placed },
        Frame { arg0: 8, ..placed },
        // Too long, in a receive or in memory.
        Frame { payload: MAX_MESSAGE + 1, ..write },
        Frame { payload: u32::MAX, ..write },
        Frame { payload: MAX_MESSAGE + 1, ..Frame::write(0) },
        Frame { payload: MAX_MESSAGE + 1, ..Frame::send(0) },
        Frame { payload: MAX_MESSAGE + 1, ..Frame::read_response(0, 0) },
        // Payload where there is none.
        Frame { payload: 8, ..Frame::read(0) },
        Frame { payload: 8, ..Frame::fetch_add(0) },
        Frame { payload: 8, ..Frame::fetch_op(0, 1) },
        Frame { payload: 8, ..Frame::ack(0) },
        // Not the next request.
        Frame::read(1),
        Frame::send(u32::MAX),
        // An atomic that does not exist.
        Frame::fetch_op(0, 0),
        Frame::fetch_op(0, 7),
        Frame::fetch_op(0, 1 << 32 | 1),
        // Nothing.
        Frame::default(),
        Frame { opcode: 0xff, ..Frame::default() },
    ];
    for lie in lies {
        assert_ends(config, lie, RawPeer::meet);
    }
}

fn a_peer_that_shares_memory_cannot_place_everything(config: Config) {
    if config.is_tcp() {
        return;
    }
    let placed = Frame { flags: IMM | PLACED, imm: 7, ..Frame::write(0) };
    let lies = [
        Frame { arg0: u64::from(MAX_MESSAGE) + 1, ..placed },
        Frame { arg0: u64::MAX, ..placed },
        Frame { payload: 8, arg0: 8, ..placed },
        Frame { payload: 8, flags: PLACED, ..placed },
    ];
    for lie in lies {
        assert_ends(config, lie, RawPeer::meet_sharing);
    }
    // A plausible answer is accepted.
    let side = Setup::new(config).side();
    let peer = RawPeer::meet_sharing(config, &side);
    side.recv(7, &[]);
    peer.say(&Frame { arg0: u64::from(MAX_MESSAGE), ..placed }.bytes());
    let wc = until("the receive", || {
        side.pump();
        side.take_recv()
    });
    assert_eq!((wc.wr_id, wc.status, wc.imm, wc.byte_len), (7, WcStatus::Success, Some(7), MAX_MESSAGE));
    assert_eq!(side.qp.state(), QpState::Rts);
}

fn a_reset_in_the_middle_of_a_payload(config: Config) {
    for request in [Frame::write(0), Frame { flags: IMM, ..Frame::write(0) }, Frame::send(0)] {
        for sent in [0, 1, 100, 4095] {
            let side = Setup::new(config).side();
            let peer = RawPeer::meet(config, &side);
            let memory = side.guarded(4096, Access::REMOTE_ALL);
            let unrelated = side.guarded(64, Access::REMOTE_ALL);
            side.recv(7, &[memory.all()]);
            side.recv(8, &[unrelated.all()]);
            side.post(&[signaled(1, write(SOMEWHERE), &[unrelated.all()])]);
            let header = Frame { rkey: memory.mr.rkey(), addr: memory.mr.addr(), payload: 4096, ..request };
            let mut bytes = header.bytes().to_vec();
            bytes.extend(pattern(1, sent));
            peer.say(&bytes);
            peer.reset();
            ends(&side, "the end of a connection that was reset");
            let flushed = WcStatus::WrFlushErr;
            assert_eq!(recvs(&side, 2), [(7, flushed), (8, flushed)], "{request:?} with {sent} bytes");
            assert_eq!(sends(&side, 1), [(1, WcStatus::RetryExcErr)]);
            quiet(&side);
            memory.assert_guards();
            assert!(memory.get(sent, 4096 - sent).iter().all(|&byte| byte == 0));
            unrelated.assert_untouched();
        }
    }
}
