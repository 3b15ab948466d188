//! Tests of memory handles from a peer on this host: no surplus handle is taken, and none is kept
//! by an ended connection.

use std::{
    io::{ErrorKind, Read},
    os::{fd::AsFd, unix::net::UnixStream},
};

use rdmabox::{
    memory::Memory,
    verbs::{Access, QpState, SendOp, WcStatus},
};

use crate::{
    fixture::{Config, Pair, Setup, Side, read, signaled, until, write},
    raw::{FRAME, Frame, RawPeer, ends, quiet, recvs},
};

/// Makes a test of every subject for both ways to drive a peer of this host.
macro_rules! inside_a_host {
    ($($name:ident),+ $(,)?) => {
        mod shm_engine {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::SHM_ENGINE) })+
        }
        mod shm_caller {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::SHM_CALLER) })+
        }
    };
}

inside_a_host! {
    handles_with_frames_that_have_none_end_the_connection,
    handles_in_a_payload_end_the_connection,
    handles_that_trickle_in_with_a_header_end_the_connection,
    a_memory_frame_has_one_handle,
    a_handle_that_is_no_memory_ends_the_connection,
    memory_frames_have_a_limit,
    memory_frames_need_a_peer_that_shares,
    a_tether_is_held_until_the_queue_pair_is_in_err,
    a_tether_is_one_descriptor_and_comes_once,
    a_side_that_maps_nothing_keeps_nothing,
    requests_of_a_side_that_maps_nothing_are_carried_out_by_the_peer,
}

/// Returns a descriptor and a stream that reports when the last copy of the descriptor is closed.
fn witness() -> (UnixStream, UnixStream) {
    let (kept, given) = UnixStream::pair().expect("socketpair");
    kept.set_nonblocking(true).expect("O_NONBLOCK");
    (kept, given)
}

fn assert_all_closed(mut kept: &UnixStream) {
    until("all copies of a descriptor to be closed", || match kept.read(&mut [0]) {
        Ok(0) => Some(()),
        Ok(_) => panic!("no peer writes"),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::WouldBlock);
            None
        }
    });
}

/// Returns a side with a receive, and a peer that shares memory.
fn meet(config: Config) -> (Side, RawPeer) {
    let side = Setup::new(config).side();
    let peer = RawPeer::meet_sharing(config, &side);
    side.recv(1, &[]);
    (side, peer)
}

/// Asserts that the connection ended because of the bytes from `peer`, which has not hung up.
fn assert_ended(side: Side, peer: RawPeer) {
    ends(&side, "the end of a connection with surplus handles");
    let completions = recvs(&side, 1);
    assert!(completions.iter().all(|&(id, status)| (id, status) == (1, WcStatus::WrFlushErr)));
    quiet(&side);
    drop((side, peer));
}

fn handles_with_frames_that_have_none_end_the_connection(config: Config) {
    let kinds = [
        Frame::send(0),
        Frame::write(0),
        Frame::read(0),
        Frame::ack(u32::MAX),
        Frame { opcode: 0xff, ..Frame::default() },
    ];
    for frame in kinds {
        for count in [1, 2, 10, 40] {
            let (kept, given) = witness();
            let (side, peer) = meet(config);
            peer.say_with(&frame.bytes(), &vec![given.as_fd(); count]);
            drop(given);
            assert_ended(side, peer);
            assert_all_closed(&kept);
        }
    }
}

fn handles_in_a_payload_end_the_connection(config: Config) {
    const PAYLOAD: u32 = 1 << 20;
    let (kept, given) = witness();
    let (side, peer) = meet(config);
    let memory = side.guarded(PAYLOAD as usize, Access::REMOTE_ALL);
    let (rkey, addr) = (memory.mr.rkey(), memory.mr.addr());
    peer.say(&Frame { payload: PAYLOAD, rkey, addr, ..Frame::write(0) }.bytes());
    // A byte at a time, and far from the end of the payload.
    for _ in 0..100 {
        if !peer.try_say_with(&[1], &[given.as_fd()]) {
            break;
        }
        side.pump();
    }
    drop(given);
    assert_ended(side, peer);
    assert_all_closed(&kept);
    memory.assert_guards();
}

fn handles_that_trickle_in_with_a_header_end_the_connection(config: Config) {
    for count in [1, 2, 10] {
        let (kept, given) = witness();
        let (side, peer) = meet(config);
        // All but the last byte: it is never acted on.
        for byte in &Frame::memory(0, 4096).bytes()[..FRAME - 1] {
            if !peer.try_say_with(&[*byte], &vec![given.as_fd(); count]) {
                break;
            }
            side.pump();
        }
        drop(given);
        assert_ended(side, peer);
        assert_all_closed(&kept);
    }
}

fn a_memory_frame_has_one_handle(config: Config) {
    let memory = Memory::shared("peer", 4096).expect("memory");
    let handle = memory.fd().expect("shared");
    for count in [0, 2, 3, 12] {
        let (side, peer) = meet(config);
        peer.say_with(&Frame::memory(0, 4096).bytes(), &vec![handle; count]);
        assert_ended(side, peer);
    }
}

fn a_handle_that_is_no_memory_ends_the_connection(config: Config) {
    let memory = Memory::shared("peer", 4096).expect("memory");
    let (kept, given) = witness();
    let cases = [
        (Frame::memory(0, 4096), given.as_fd()),
        (Frame::memory(0, 4097), memory.fd().expect("shared")),
        (Frame { arg0: u64::MAX, ..Frame::memory(0, 0) }, memory.fd().expect("shared")),
    ];
    for (frame, handle) in cases {
        let (side, peer) = meet(config);
        peer.say_with(&frame.bytes(), &[handle]);
        assert_ended(side, peer);
    }
    drop(given);
    assert_all_closed(&kept);
}

fn memory_frames_have_a_limit(config: Config) {
    const LIMIT: u64 = 4096;
    let memory = Memory::shared("peer", 4096).expect("memory");
    let handle = memory.fd().expect("shared");
    let (side, peer) = meet(config);
    for id in 0..LIMIT {
        peer.say_with(&Frame::memory(id, 4096).bytes(), &[handle]);
        side.pump();
    }
    // All of them have been dealt with when the message behind them has.
    peer.say(&Frame::send(0).bytes());
    assert_eq!(recvs(&side, 1), [(1, WcStatus::Success)]);
    assert_eq!(side.qp.state(), QpState::Rts);
    side.recv(1, &[]);
    peer.say_with(&Frame::memory(LIMIT, 4096).bytes(), &[handle]);
    assert_ended(side, peer);
}

fn memory_frames_need_a_peer_that_shares(config: Config) {
    let memory = Memory::shared("peer", 4096).expect("memory");
    let side = Setup::new(config).side();
    let peer = RawPeer::meet(config, &side);
    side.recv(1, &[]);
    peer.say_with(&Frame::memory(0, 4096).bytes(), &[memory.fd().expect("shared")]);
    assert_ended(side, peer);
}

fn a_tether_is_held_until_the_queue_pair_is_in_err(config: Config) {
    let held = || {
        let (kept, given) = witness();
        let (side, peer) = meet(config);
        peer.say_with(&Frame::tether().bytes(), &[given.as_fd()]);
        drop(given);
        // It has been dealt with when the message behind it has.
        peer.say(&Frame::send(0).bytes());
        assert_eq!(recvs(&side, 1), [(1, WcStatus::Success)]);
        assert_eq!((&kept).read(&mut [0]).map_err(|e| e.kind()), Err(ErrorKind::WouldBlock));
        (kept, side, peer)
    };
    let (kept, side, _peer) = held();
    side.qp.to_error();
    assert_eq!((&kept).read(&mut [0]).map_err(|e| e.kind()), Ok(0), "when it has returned, and not later");
    // The peer that sent the handle may have gone.
    let (kept, side, peer) = held();
    drop(peer);
    ends(&side, "the end of a connection whose peer is gone");
    assert_all_closed(&kept);
    drop(side);
}

fn a_tether_is_one_descriptor_and_comes_once(config: Config) {
    for counts in [&[0][..], &[2], &[12], &[1, 1]] {
        let (kept, given) = witness();
        let (side, peer) = meet(config);
        for &count in counts {
            peer.say_with(&Frame::tether().bytes(), &vec![given.as_fd(); count]);
        }
        drop(given);
        assert_ended(side, peer);
        assert_all_closed(&kept);
    }
    let (kept, given) = witness();
    let side = Setup::new(config).side();
    let peer = RawPeer::meet(config, &side);
    side.recv(1, &[]);
    peer.say_with(&Frame::tether().bytes(), &[given.as_fd()]);
    drop(given);
    assert_ended(side, peer);
    assert_all_closed(&kept);
}

fn a_side_that_maps_nothing_keeps_nothing(config: Config) {
    let side = Setup::new(config).maps_nothing().side();
    let peer = RawPeer::meet_sharing(config, &side);
    side.recv(1, &[]);
    // More than would be mapped, and none that could be.
    let (kept, given) = witness();
    for id in 0..5000 {
        peer.say_with(&Frame::memory(id, usize::MAX).bytes(), &[given.as_fd()]);
        side.pump();
    }
    peer.say_with(&Frame::tether().bytes(), &[given.as_fd()]);
    drop(given);
    peer.say(&Frame::send(0).bytes());
    assert_eq!(recvs(&side, 1), [(1, WcStatus::Success)]);
    assert_all_closed(&kept);
    // The kernel drops surplus descriptors as well: this process never receives them, and the
    // connection continues.
    side.recv(2, &[]);
    let (kept, given) = witness();
    peer.say_with(&Frame::memory(0, 4096).bytes(), &[given.as_fd(), given.as_fd()]);
    drop(given);
    peer.say(&Frame::send(1).bytes());
    assert_eq!(recvs(&side, 1), [(2, WcStatus::Success)]);
    assert_all_closed(&kept);
}

fn requests_of_a_side_that_maps_nothing_are_carried_out_by_the_peer(config: Config) {
    let (setup, unmapped) = (Setup::new(config), Setup::new(config).maps_nothing());
    let pair = Pair { a: unmapped.side(), b: setup.side(), config };
    pair.connect();
    assert!(!pair.a.qp.executes_at_post() && pair.b.qp.executes_at_post());
    for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
        let (remote, local) = (to.guarded(64, Access::REMOTE_ALL), from.filled(&[7; 64]));
        let back = from.local(72);
        let add = SendOp::FetchAdd { remote: remote.remote(0), add: 1 };
        let with_imm = SendOp::Write { remote: remote.remote(8), imm: Some(5) };
        to.recv(9, &[]);
        from.post(&[
            signaled(1, write(remote.remote(0)), &[local.all()]),
            signaled(2, add, &[back.sge(64, 8)]),
            signaled(3, with_imm, &[local.sge(0, 1)]),
            signaled(4, read(remote.remote(0)), &[back.sge(0, 64)]),
        ]);
        for id in 1..=4 {
            let wc = pair.sent(from);
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        }
        let wc = pair.received(to);
        assert_eq!((wc.wr_id, wc.imm, wc.byte_len), (9, Some(5), 1));
        assert_eq!(back.word(64), u64::from_le_bytes([7; 8]));
        assert_eq!(back.word(0), u64::from_le_bytes([7; 8]) + 1);
        assert_eq!(back.get(8, 56), [7; 56]);
        remote.assert_guards();
    }
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Rts, QpState::Rts));
}
