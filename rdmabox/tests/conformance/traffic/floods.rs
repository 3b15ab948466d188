//! Tests of traffic beyond the sockets' buffers in both directions: correct peers make progress,
//! and a peer that reads no answers does not.

use std::thread;

use rdmabox::verbs::{Access, QpState, SendOp, WcStatus};

use crate::{
    fixture::{Config, Pair, Random, Setup, Side, pair, pattern, read, signaled, until, write},
    raw::{FRAME, Frame, RawPeer},
};

software_conformance! {
    large_reads_of_both_sides_pass_each_other,
    floods_of_both_sides_pass_each_other,
    full_queues_of_both_sides_pass_each_other,
    a_peer_that_reads_no_answers_makes_no_progress,
}

#[track_caller]
fn assert_succeeds(pair: &Pair, side: &Side, id: u64) {
    let wc = pair.sent(side);
    assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
}

fn large_reads_of_both_sides_pass_each_other(config: Config) {
    const LEN: usize = 17 << 20;
    let pair = pair(config);
    let data = pattern(1, LEN);
    let (of_a, of_b) = (pair.a.buf(LEN, Access::REMOTE_READ), pair.b.buf(LEN, Access::REMOTE_READ));
    of_a.set(0, &data);
    of_b.set(0, &data);
    let (into_a, into_b) = (pair.a.local(LEN), pair.b.local(LEN));
    for id in 0..2 {
        pair.a.post(&[signaled(id, read(of_b.remote(0)), &[into_a.all()])]);
        pair.b.post(&[signaled(id, read(of_a.remote(0)), &[into_b.all()])]);
    }
    for id in 0..2 {
        assert_succeeds(&pair, &pair.a, id);
        assert_succeeds(&pair, &pair.b, id);
    }
    assert!(into_a.contents() == data);
    assert!(into_b.contents() == data);
}

fn floods_of_both_sides_pass_each_other(config: Config) {
    const LEN: usize = 1 << 20;
    const REQUESTS: u64 = 300;
    let pair = Setup::new(config).queues(64, 8).pair();
    let data = pattern(1, LEN);
    let sides = [&pair.a, &pair.b];
    let readable = sides.map(|side| {
        let buf = side.buf(LEN, Access::REMOTE_READ);
        buf.set(0, &data);
        buf
    });
    let written = sides.map(|side| side.guarded(LEN, Access::REMOTE_WRITE));
    let sources = sides.map(|side| side.filled(&data));
    let landings = sides.map(|side| side.guarded(LEN, Access::LOCAL_WRITE));
    let mut random = Random::new(1);
    let (mut posted, mut completed) = ([0u64; 2], [0u64; 2]);
    let mut ranges: [[Vec<(usize, usize)>; 2]; 2] = Default::default();
    let depth = u64::from(pair.a.qp.caps().max_send_wr.min(64));
    pair.until("both floods to get through", || {
        for (me, side) in sides.into_iter().enumerate() {
            while let Some(wc) = side.take_send() {
                assert_eq!((wc.wr_id, wc.status), (completed[me], WcStatus::Success));
                completed[me] += 1;
            }
            while posted[me] < REQUESTS && posted[me] - completed[me] < depth {
                // Every length is as likely as its double.
                let limit = 1 << (4 + random.below(15));
                let len = random.below(limit);
                let at = random.below(LEN - len);
                let writes = random.below(2);
                ranges[me][writes].push((at, len));
                if writes == 1 {
                    let sges = [sources[me].sge(at, len)];
                    side.post(&[signaled(posted[me], write(written[1 - me].remote(at)), &sges)]);
                } else {
                    let sges = [landings[me].sge(at, len)];
                    side.post(&[signaled(posted[me], read(readable[1 - me].remote(at)), &sges)]);
                }
                posted[me] += 1;
            }
        }
        (completed == [REQUESTS; 2]).then_some(())
    });
    for me in 0..2 {
        for (ranges, buf) in ranges[me].iter().zip([&landings[me], &written[1 - me]]) {
            let mut expected = vec![0; LEN];
            for &(at, len) in ranges {
                expected[at..at + len].copy_from_slice(&data[at..at + len]);
            }
            assert!(buf.contents() == expected, "exactly the requested bytes have moved");
            buf.assert_guards();
        }
    }
}

fn full_queues_of_both_sides_pass_each_other(config: Config) {
    // As deep as queues get.
    const DEPTH: u32 = 1 << 16;
    let setup = Setup::new(config).change_caps(|caps| caps.max_send_wr = DEPTH);
    let setup = Setup { cq_depth: DEPTH as usize, ..setup };
    let pair = setup.pair();
    let sides = [&pair.a, &pair.b];
    let words = sides.map(|side| side.buf(8, Access::REMOTE_ALL));
    let old = sides.map(|side| side.local(8));
    thread::scope(|scope| {
        for me in 0..2 {
            let (side, old, word) = (sides[me], &old[me], &words[1 - me]);
            scope.spawn(move || {
                let sges = [old.all()];
                for id in 0..u64::from(DEPTH) {
                    let add = SendOp::FetchAdd { remote: word.remote(0), add: 1 };
                    let (op, sges): (_, &[_]) =
                        if id % 2 == 0 { (add, &sges) } else { (read(word.remote(0)), &[]) };
                    side.post(&[signaled(id, op, sges)]);
                }
            });
        }
    });
    for id in 0..u64::from(DEPTH) {
        assert_succeeds(&pair, &pair.a, id);
        assert_succeeds(&pair, &pair.b, id);
    }
    for (old, word) in old.iter().zip(&words) {
        assert_eq!((word.word(0), old.word(0)), (u64::from(DEPTH / 2), u64::from(DEPTH / 2) - 1));
    }
}

fn a_peer_that_reads_no_answers_makes_no_progress(config: Config) {
    // Limit of the pending answers: those of the deepest queue, and the contents of small sockets
    // (somewhat over 4 MiB).
    const BOUND: usize = 8 << 20;
    const BATCH: u32 = 256;
    for atomics in [false, true] {
        let side = Setup::new(config).side();
        let peer = RawPeer::meet_narrow(config, &side, 64 << 10);
        let memory = side.buf(8, Access::REMOTE_ALL);
        let (rkey, addr) = (memory.mr.rkey(), memory.mr.addr());
        let mut next = 0;
        let mut waiting = Vec::new();
        let mut accepted = 0;
        let mut refusals = 0;
        // Stops when nothing has been taken for long, although all sides could run.
        while refusals < 2000 {
            if waiting.is_empty() {
                for msn in next..next + BATCH {
                    let request = match atomics {
                        true => Frame { rkey, addr, arg0: 1, ..Frame::fetch_add(msn) },
                        false => Frame::read(msn),
                    };
                    waiting.extend(request.bytes());
                }
                next += BATCH;
            }
            let count = peer.offer(&waiting);
            waiting.drain(..count);
            accepted += count;
            assert!(accepted < BOUND, "requests are taken from a peer that reads no answers");
            refusals = if count > 0 { 0 } else { refusals + 1 };
            side.pump();
            thread::yield_now();
        }
        assert_eq!((side.qp.state(), side.pending()), (QpState::Rts, vec![]));
        if atomics {
            assert!(memory.word(0) < (BOUND / FRAME) as u64);
        }
        // It reads at last: every request is answered, once and in order.
        let expected = next as usize * FRAME;
        let mut heard = Vec::with_capacity(expected);
        until("all answers", || {
            let count = peer.offer(&waiting);
            waiting.drain(..count);
            side.pump();
            assert!(peer.hear(&mut heard), "the connection is as good as before");
            (heard.len() >= expected).then_some(())
        });
        assert_eq!((heard.len(), waiting.len()), (expected, 0));
        for (msn, answer) in heard.chunks_exact(FRAME).enumerate() {
            let expected = match atomics {
                true => Frame { arg0: msn as u64, ..Frame::atomic_response(msn as u32) },
                false => Frame::read_response(msn as u32, 0),
            };
            assert_eq!(answer, expected.bytes());
        }
        if atomics {
            assert_eq!(memory.word(0), u64::from(next));
        }
    }
}
