//! Tests that a stream's bytes may arrive in pieces of any size.

use rdmabox::verbs::{Access, QpState};

use crate::{
    fixture::{Config, Random, Setup, pattern, until},
    raw::{ACK_WANTED, FRAME, Frame, RawPeer},
};

software_conformance! {
    frames_that_come_in_pieces_of_any_size,
}

const LEN: usize = 64 << 10;
const FRAMES: u32 = 150;

fn frames_that_come_in_pieces_of_any_size(config: Config) {
    // From byte by byte to all at once.
    for (round, longest) in [1, 3, 47, 48, 49, 500, 1500, 1 << 20].into_iter().enumerate() {
        let side = Setup::new(config).side();
        let memory = side.guarded(LEN, Access::REMOTE_WRITE);
        let (source, stays) = (side.buf(LEN, Access::REMOTE_READ), pattern(7, LEN));
        source.set(0, &stays);
        let peer = RawPeer::meet(config, &side);
        let mut random = Random::new(round as u64);
        let (mut said, mut answers) = (Vec::new(), Vec::new());
        let mut expected = memory.contents();
        for msn in 0..FRAMES {
            // Lengths around the limit of a header's read-ahead, and others.
            let limit = [16, 200, 2000, 5000][random.below(4)];
            let len = random.below(limit);
            let at = random.below(LEN - len);
            let reads = random.below(3) == 0;
            let remote = if reads { source.remote(at) } else { memory.remote(at) };
            let place = |frame: Frame| Frame { rkey: remote.rkey, addr: remote.addr, ..frame };
            if reads {
                said.extend(place(Frame { length: len as u32, ..Frame::read(msn) }).bytes());
                answers.extend(Frame::read_response(msn, len as u32).bytes());
                answers.extend_from_slice(&stays[at..at + len]);
            } else {
                let data = pattern(u64::from(msn), len);
                said.extend(place(Frame { payload: len as u32, ..Frame::write(msn) }).bytes());
                said.extend_from_slice(&data);
                expected[at..at + len].copy_from_slice(&data);
            }
        }
        said.extend(Frame { flags: ACK_WANTED, ..Frame::fetch_add(FRAMES) }.bytes());
        let mut rest = said.as_slice();
        let mut heard = Vec::new();
        // The last one is refused, behind all others.
        answers.extend([0; FRAME]);
        while !rest.is_empty() {
            until("a piece to be taken", || {
                let piece = (1 + random.below(longest)).min(rest.len());
                let taken = peer.offer(&rest[..piece]);
                rest = &rest[taken..];
                side.pump();
                peer.hear(&mut heard);
                (taken > 0).then_some(())
            });
        }
        until("all to be answered", || {
            side.pump();
            peer.hear(&mut heard);
            (heard.len() >= answers.len()).then_some(())
        });
        assert_eq!(heard.len(), answers.len(), "in pieces of up to {longest}");
        assert!(heard[..heard.len() - FRAME] == answers[..heard.len() - FRAME]);
        assert_eq!(heard[heard.len() - FRAME], 17, "a refusal");
        // An engine thread answers first.
        until("the refusal to take effect", || (side.qp.state() == QpState::Err).then_some(()));
        assert!(memory.contents() == expected);
        memory.assert_guards();
    }
}
