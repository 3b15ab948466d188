//! The receiving half of a connection: reads from the socket straight into the destination.
//!
//! [`Rx`] is a state machine. It reads a header and the bytes behind it (`RecvBuffer`), and
//! determines the destination of the payload. Then it reads the payload and the next header with
//! one system call. On a Unix socket it reads no bytes behind a header. A descriptor arrives with
//! the first byte of its frame, and the assignment would be lost.
//!
//! # Concurrency
//! The thread that makes progress holds the queue pair's `rx` lock. `Rx` takes `sq`, `tx` and
//! `rq` under it.

use zerocopy::{FromBytes, IntoBytes};

use super::{
    link::Link,
    rx_state::{Action, Landing, MAX_VECTORS, Rx, State, Step, Then},
    send_queue::Outcome,
    soft_qp::SoftQp,
};
use crate::{
    mapping::IoVec,
    provider::soft::wire::{HEADER_LEN, Header, Opcode},
    verbs::WcStatus,
};

/// Maximum number of frames before other queue pairs get their turn.
const BUDGET_FRAMES: usize = 64;
/// Maximum number of bytes per discarding read.
const DISCARD: usize = 16 * 1024;

impl Rx {
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
            Action::Land(landing) => {
                self.have = 0;
                self.buffer.adapt_to(landing.remaining);
                if landing.remaining == 0 {
                    self.state = State::Header;
                    self.landed(qp, link, landing);
                } else {
                    #[cfg(feature = "seeded-faults")]
                    let landing = self.acknowledge_early(landing);
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

    /// Acknowledges a write before its payload has arrived, if that fault is on.
    #[cfg(feature = "seeded-faults")]
    fn acknowledge_early(&mut self, mut landing: Landing) -> Landing {
        if crate::failure::seeded::seeded!("completed-early")
            && let Then::Executed { msn, ack: true, recv: None } = landing.then
        {
            landing.then = Then::Executed { msn, ack: false, recv: None };
            self.ack(msn);
        }
        landing
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
