//! The receiving half of a connection: reads from the socket straight into the destination.
//!
//! [`Rx`] is a state machine. It reads a header and the bytes behind it ([`RecvBuffer`]),
//! determines the destination of the payload, then reads the payload and the next header with one
//! system call. On a Unix socket it reads no bytes behind a header: a descriptor arrives with the
//! first byte of its frame, and the assignment would be lost.
//!
//! # Concurrency
//! The thread that makes progress holds the queue pair's `rx` lock. `Rx` takes `sq`, `tx` and
//! `rq` under it.

use std::{
    io,
    os::fd::OwnedFd,
    sync::atomic::{AtomicU64, Ordering},
};

use seeded_faults::seeded;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    send_queue::{Outcome, Pieces},
    soft_qp::{Link, SoftQp},
};
use crate::{
    mapping::{self, IoVec},
    provider::soft::{
        stream::RecvBuffer,
        wire::{HEADER_LEN, Header, Opcode},
    },
    verbs::{WcOpcode, WcStatus},
};

/// Maximum number of frames before other queue pairs get their turn.
const BUDGET_FRAMES: usize = 64;
/// Maximum number of bytes per discarding read.
const DISCARD: usize = 16 * 1024;

/// A posted receive that a message consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenRecv {
    pub wr_id: u64,
    pub byte_len: u32,
    pub imm: Option<u32>,
    pub opcode: WcOpcode,
}

/// Action after the payload has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Completes a request of the peer.
    Executed { msn: u32, ack: bool, recv: Option<TakenRecv> },
    /// Completes an own READ.
    ReadDone(u32),
}

/// Payload in transit to its destination.
#[derive(Debug)]
pub(crate) struct Landing {
    pieces: Pieces,
    /// Number of pieces that are full.
    next: usize,
    /// Bytes of piece `next` that have arrived.
    filled: usize,
    remaining: usize,
    /// Bytes of an aligned word, which is stored atomically when complete. `None` for other
    /// payloads, whose bytes are stored as they arrive.
    word: Option<[u8; WORD]>,
    pub then: Then,
}

/// Size in bytes of a word that is stored atomically.
const WORD: usize = 8;

/// Maximum number of vectors per receive call.
const MAX_VECTORS: usize = 32;

impl Landing {
    pub(crate) fn new(pieces: Pieces, len: usize, then: Then) -> Landing {
        debug_assert!(pieces.iter().map(|piece| piece.len).sum::<usize>() >= len, "shorter than the payload");
        let is_word = len == WORD
            && pieces.first().is_some_and(|piece| piece.len >= WORD && piece.ptr.addr().is_multiple_of(WORD));
        Landing { pieces, next: 0, filled: 0, remaining: len, word: is_word.then_some([0; WORD]), then }
    }

    /// Stores a gathered word after all its bytes have arrived. If the connection ends earlier, the
    /// old word stays.
    fn store_word(&mut self) {
        if let (Some(word), Some(piece)) = (self.word.take(), self.pieces.first()) {
            // SAFETY: the piece has at least 8 checked bytes of a region that it keeps mapped, at
            // an aligned address. AtomicU64 allows concurrent modification.
            let place = unsafe { AtomicU64::from_ptr(piece.ptr.cast()) };
            place.store(u64::from_ne_bytes(word), Ordering::Release);
        }
    }

    /// Fills `vectors` with the destination of the next bytes. Returns the number of vectors, and
    /// whether they cover the rest of the payload.
    fn vectors(&mut self, vectors: &mut [IoVec]) -> (usize, bool) {
        if let Some(word) = &mut self.word {
            let mut vector = IoVec::new(word.as_mut_ptr(), WORD);
            vector.skip(WORD - self.remaining);
            vectors[0] = vector;
            return (usize::from(self.remaining > 0), true);
        }
        let (mut count, mut filled, mut remaining) = (0, self.filled, self.remaining);
        for piece in &self.pieces[self.next..] {
            if remaining == 0 || count == vectors.len() {
                break;
            }
            let mut vector = IoVec::new(piece.ptr, piece.len.min(filled + remaining));
            vector.skip(std::mem::take(&mut filled));
            remaining -= vector.len();
            vectors[count] = vector;
            count += 1;
        }
        (count, remaining == 0)
    }

    /// Copies buffered bytes to their destination. Returns how many of them were payload.
    fn put(&mut self, bytes: &[u8]) -> usize {
        let mut vectors = [IoVec::new(std::ptr::null_mut(), 0); MAX_VECTORS];
        let (used, _) = self.vectors(&mut vectors);
        let mut put = 0;
        for vector in &vectors[..used] {
            let len = vector.len().min(bytes.len() - put);
            // SAFETY: the destination was checked against its regions, which it keeps mapped, and
            // belongs to an outstanding request. The source is a private buffer.
            unsafe { mapping::copy(bytes[put..].as_ptr(), vector.ptr(), len) };
            put += len;
        }
        self.advance(put);
        put
    }

    /// Records `count` received bytes. Returns the number of bytes beyond the payload.
    fn advance(&mut self, mut count: usize) -> usize {
        while count > 0 && self.remaining > 0 {
            let room = (self.pieces[self.next].len - self.filled).min(self.remaining);
            let done = count.min(room);
            self.filled += done;
            self.remaining -= done;
            count -= done;
            if done == room {
                self.next += 1;
                self.filled = 0;
            }
        }
        count
    }
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // One per queue pair; a box would be an allocation per message.
enum State {
    /// Between frames, and before the connection.
    Header,
    Payload(Landing),
    /// A header is complete but cannot be handled yet.
    Waiting,
    /// This side has refused a request. Further input is discarded until the peer disconnects.
    Draining,
    Closed,
}

/// Action for a header.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Lives for one call; a box would be an allocation per message.
pub(crate) enum Action {
    /// The frame is complete.
    Next,
    /// Payload follows.
    Land(Landing),
    /// No receive is posted, or too many answers wait; retry later.
    NotReady,
    /// Refuse the peer's request with `status`, which is sent to the peer.
    Refuse { msn: u32, status: WcStatus },
    /// An own request failed.
    Fail,
    /// The peer violated the protocol.
    ProtocolError(&'static str),
}

#[derive(Debug)]
pub(crate) struct Rx {
    header: [u8; HEADER_LEN],
    have: usize,
    buffer: RecvBuffer,
    state: State,
    /// Request to acknowledge when the input is drained.
    ack_due: Option<u32>,
    /// Sequence number of the peer's next request.
    pub expected_msn: u32,
    /// Descriptors that arrived with frames.
    pub descriptors: Vec<OwnedFd>,
}

impl Rx {
    pub(crate) fn new() -> Rx {
        Rx {
            header: [0; HEADER_LEN],
            have: 0,
            buffer: RecvBuffer::new(),
            state: State::Header,
            ack_due: None,
            expected_msn: 0,
            descriptors: Vec::new(),
        }
    }

    /// Stops all input. Returns the receive that an incomplete message had taken, if any.
    pub(crate) fn close(&mut self, draining: bool) -> Option<TakenRecv> {
        self.descriptors.clear();
        self.buffer.clear();
        let next = if draining { State::Draining } else { State::Closed };
        match std::mem::replace(&mut self.state, next) {
            State::Payload(Landing { then: Then::Executed { recv, .. }, .. }) => recv,
            _ => None,
        }
    }

    /// Requests an acknowledgement of `msn` before the thread leaves this queue pair.
    pub(crate) fn ack(&mut self, msn: u32) {
        self.ack_due = Some(msn);
    }

    /// Reads and handles frames until the socket is empty or the budget is used up. Returns true if
    /// any byte moved.
    pub(crate) fn pump(&mut self, qp: &SoftQp, link: &Link) -> bool {
        let mut moved = false;
        loop {
            for _ in 0..BUDGET_FRAMES {
                match self.step(qp, link) {
                    Step::Moved => moved = true,
                    Step::Drained => {
                        moved = true;
                        break;
                    }
                    Step::Empty => break,
                    Step::Ended => {
                        self.disconnected(qp);
                        return true;
                    }
                }
            }
            let ack = self.ack_due.take();
            if let Some(msn) = ack {
                qp.tx().answer(&Header::new(Opcode::Ack, msn));
            }
            if moved || ack.is_some() || qp.tx_waits() {
                qp.flush_tx();
            } else {
                qp.update_interest();
            }
            // A request that waited for the socket continues as soon as the socket has taken
            // enough. Its header has been read, so no event would resume it.
            if !self.is_waiting() || qp.must_wait() {
                return moved;
            }
        }
    }

    /// Returns true if buffered bytes exist that epoll does not report.
    pub(crate) fn holds_input(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Returns true while a complete header cannot be handled.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    fn disconnected(&mut self, qp: &SoftQp) {
        self.ack_due = None;
        if matches!(self.state, State::Draining) {
            self.state = State::Closed;
            qp.leave_sets();
        } else {
            qp.enter_error(self, WcStatus::RetryExcErr, false);
        }
    }

    fn step(&mut self, qp: &SoftQp, link: &Link) -> Step {
        match &mut self.state {
            State::Closed => Step::Empty,
            State::Draining => self.discard(link),
            State::Waiting => self.act(qp, link),
            State::Header => self.read_header(qp, link),
            State::Payload(_) => self.read_payload(qp, link),
        }
    }

    fn read_header(&mut self, qp: &SoftQp, link: &Link) -> Step {
        if self.header_from_buffer() {
            return self.act(qp, link);
        }
        if self.buffer.take_last() {
            return Step::Drained;
        }
        let missing = HEADER_LEN - self.have;
        let own = IoVec::new(self.header[self.have..].as_mut_ptr(), missing);
        let (vectors, asked) = match link.socket.is_unix() {
            true => ([own; 2], 1),
            false => ([own, self.buffer.vector()], 2),
        };
        // SAFETY: the vectors lie inside private buffers, and no other code uses these parts.
        match unsafe { link.socket.receive(&vectors[..asked], &mut self.descriptors) } {
            Ok(0) => Step::Ended,
            Ok(count) => {
                self.have += count.min(missing);
                // Checked at once, so that a peer cannot accumulate descriptors byte by byte.
                if self.descriptors.len() > 1 {
                    return self.protocol_error(qp, "more than one handle with a frame");
                }
                if self.have < HEADER_LEN {
                    return Step::Drained;
                }
                self.buffer_filled(count - missing, &vectors[1..asked]);
                self.act(qp, link)
            }
            Err(e) => Step::from_error(&e),
        }
    }

    fn read_payload(&mut self, qp: &SoftQp, link: &Link) -> Step {
        let State::Payload(landing) = &mut self.state else { return Step::Empty };
        if !self.buffer.is_empty() {
            let put = landing.put(self.buffer.bytes());
            self.buffer.take(put);
            let missing = landing.remaining > 0;
            if !missing {
                self.payload_complete(qp, link);
            }
            let drained = missing && self.buffer.is_empty() && self.buffer.take_last();
            return if drained { Step::Drained } else { Step::Moved };
        }
        let mut vectors = [IoVec::new(std::ptr::null_mut(), 0); MAX_VECTORS];
        let (pieces, all) = landing.vectors(&mut vectors[..MAX_VECTORS - 2]);
        let mut used = pieces;
        if all {
            vectors[used] = IoVec::new(self.header.as_mut_ptr(), HEADER_LEN);
            used += 1;
            if !link.socket.is_unix() {
                vectors[used] = self.buffer.vector();
                used += 1;
            }
        }
        // SAFETY: the destination was checked against its regions, which it keeps mapped, and
        // belongs to an outstanding request. The other vectors are private buffers, which are empty
        // between frames.
        match unsafe { link.socket.receive(&vectors[..used], &mut self.descriptors) } {
            Ok(0) => Step::Ended,
            Ok(count) => {
                let beyond = landing.advance(count);
                self.have = beyond.min(HEADER_LEN);
                // A descriptor arrives with the first byte of its frame's header, which is behind
                // the payload.
                if !self.descriptors.is_empty() && self.have == 0 {
                    return self.protocol_error(qp, "a handle in a payload");
                }
                if landing.remaining > 0 {
                    // A short read means the socket is empty.
                    return if all { Step::Drained } else { Step::Moved };
                }
                self.payload_complete(qp, link);
                if self.have < HEADER_LEN || !matches!(self.state, State::Header) {
                    return Step::Drained;
                }
                self.buffer_filled(beyond - HEADER_LEN, &vectors[pieces + 1..used]);
                self.act(qp, link)
            }
            Err(e) => Step::from_error(&e),
        }
    }

    /// Takes available header bytes from the buffer. Returns true if they complete the header.
    fn header_from_buffer(&mut self) -> bool {
        let (bytes, missing) = (self.buffer.bytes(), HEADER_LEN - self.have);
        let count = bytes.len().min(missing);
        self.header[self.have..self.have + count].copy_from_slice(&bytes[..count]);
        self.have += count;
        self.buffer.take(count);
        count > 0 && count == missing
    }

    /// Records `count` bytes that were read behind a complete header, if the read had space for
    /// them.
    fn buffer_filled(&mut self, count: usize, room: &[IoVec]) {
        if let [room] = room {
            self.buffer.filled(count, count < room.len());
        }
    }

    /// Handles a payload that has arrived completely.
    fn payload_complete(&mut self, qp: &SoftQp, link: &Link) {
        if let State::Payload(landing) = std::mem::replace(&mut self.state, State::Header) {
            self.landed(qp, link, landing);
        }
    }

    /// Handles the complete header.
    fn act(&mut self, qp: &SoftQp, link: &Link) -> Step {
        let Ok(header) = Header::read_from_bytes(self.header.as_bytes()) else {
            return Step::Empty;
        };
        let carries = Opcode::from_code(header.opcode).is_some_and(Opcode::carries_descriptor);
        let action = if self.descriptors.is_empty() || carries {
            qp.dispatch(self, link, &header)
        } else {
            Action::ProtocolError("a handle with a frame that has none")
        };
        match action {
            Action::Next => self.next_frame(),
            Action::Land(mut landing) => {
                self.have = 0;
                self.buffer.adapt_to(landing.remaining);
                if landing.remaining == 0 {
                    self.state = State::Header;
                    self.landed(qp, link, landing);
                } else {
                    seeded!(CompletedEarly => self.acknowledge_early(&mut landing));
                    self.state = State::Payload(landing);
                }
                Step::Moved
            }
            Action::NotReady => {
                self.state = State::Waiting;
                Step::Empty
            }
            Action::Refuse { msn, status } => {
                let mut nak = Header::new(Opcode::Nak, msn);
                nak.status = status.code() as u8;
                qp.refuse(self, &nak);
                Step::Moved
            }
            Action::Fail => {
                qp.enter_error(self, WcStatus::WrFlushErr, false);
                Step::Empty
            }
            Action::ProtocolError(why) => self.protocol_error(qp, why),
        }
    }

    /// Closes the connection to a peer that violates the protocol.
    fn protocol_error(&mut self, qp: &SoftQp, why: &str) -> Step {
        log::warn!("queue pair {}: closing the connection: {why}", qp.number());
        qp.enter_error(self, WcStatus::GeneralErr, false);
        Step::Empty
    }

    fn next_frame(&mut self) -> Step {
        self.have = 0;
        self.state = State::Header;
        Step::Moved
    }

    /// Acknowledges a write before its payload has arrived: a seeded fault.
    fn acknowledge_early(&mut self, landing: &mut Landing) {
        if let Then::Executed { msn, ack: true, recv: None } = landing.then {
            landing.then = Then::Executed { msn, ack: false, recv: None };
            self.ack(msn);
        }
    }

    fn landed(&mut self, qp: &SoftQp, link: &Link, mut landing: Landing) {
        landing.store_word();
        match landing.then {
            Then::Executed { msn, ack, recv } => {
                if let Some(recv) = recv {
                    qp.complete_recv(recv, WcStatus::Success);
                }
                if ack {
                    self.ack(msn);
                }
            }
            Then::ReadDone(msn) => {
                let outcome = qp.answered(link, msn, |sq| sq.response_done(landing.pieces));
                if outcome == Outcome::Failed {
                    qp.enter_error(self, WcStatus::WrFlushErr, false);
                }
            }
        }
    }

    fn discard(&mut self, link: &Link) -> Step {
        let mut scratch = [0u8; DISCARD];
        let vector = IoVec::new(scratch.as_mut_ptr(), scratch.len());
        // SAFETY: the vector is a private buffer.
        match unsafe { link.socket.receive(&[vector], &mut self.descriptors) } {
            Ok(0) => Step::Ended,
            Ok(_) => {
                self.descriptors.clear();
                Step::Moved
            }
            Err(e) => Step::from_error(&e),
        }
    }
}

enum Step {
    Moved,
    /// Bytes moved, and the socket is now empty.
    Drained,
    Empty,
    /// The stream has ended.
    Ended,
}

impl Step {
    fn from_error(error: &io::Error) -> Step {
        match error.kind() {
            io::ErrorKind::WouldBlock => Step::Empty,
            io::ErrorKind::Interrupted => Step::Moved,
            _ => Step::Ended,
        }
    }
}

#[cfg(all(not(loom), test))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        mapping::Memory,
        provider::soft::memory::{Piece, Region},
        verbs::Access,
    };

    fn landing(memory: &Arc<Memory>, offset: u64, len: u64) -> Landing {
        let (addr, length) = (memory.addr(), memory.len() as u64);
        let region =
            Region { addr, length, access: Access::REMOTE_WRITE, key: 1, _memory: Some(Arc::clone(memory)) };
        let mut pieces = Pieces::new();
        pieces.push(Piece::new(&Arc::new(region), addr + offset, len).expect("inside"));
        Landing::new(pieces, len as usize, Then::Executed { msn: 1, ack: false, recv: None })
    }

    /// For every split of the stream, a reader or a broken connection never sees a part of the
    /// word.
    #[test]
    fn an_aligned_word_is_stored_atomically() {
        let memory = Arc::new(Memory::private(4096).expect("memory"));
        for first in 1..8 {
            memory.write(24, &[0xaa; 8]);
            let mut landing = landing(&memory, 24, 8);
            assert_eq!(landing.put(&[1, 2, 3, 4, 5, 6, 7][..first]), first);
            assert_eq!(memory.load_u64(24), 0xaaaa_aaaa_aaaa_aaaa, "cut after {first}");
            let mut vectors = [IoVec::new(std::ptr::null_mut(), 0); MAX_VECTORS];
            assert_eq!(landing.vectors(&mut vectors), (1, true));
            assert_eq!(vectors[0].len(), 8 - first);
            // The following bytes belong to the next frame.
            assert_eq!(landing.put(&[[1, 2, 3, 4, 5, 6, 7, 8], [9; 8]].concat()[first..]), 8 - first);
            landing.store_word();
            assert_eq!(memory.load_u64(24).to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(memory.load_u64(32), 0);
        }
    }

    #[test]
    fn other_payloads_are_stored_as_they_arrive() {
        let memory = Arc::new(Memory::private(4096).expect("memory"));
        for (offset, len) in [(25, 8), (24, 7), (24, 16)] {
            memory.write(0, &[0; 64]);
            let mut landing = landing(&memory, offset, len);
            let bytes = vec![7; len as usize];
            assert_eq!(landing.put(&bytes[..3]), 3);
            let mut out = [0; 3];
            memory.read(offset as usize, &mut out);
            assert_eq!(out, [7; 3]);
            assert_eq!(landing.put(&bytes[3..]), len as usize - 3);
            landing.store_word();
            let mut out = vec![0; len as usize + 1];
            memory.read(offset as usize, &mut out);
            assert_eq!((&out[..len as usize], out[len as usize]), (&bytes[..], 0));
        }
    }
}
