//! Handles frames from the peer: executes its requests and processes the answers to own requests.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    link::Link,
    request::Pieces,
    rx_state::{Action, Landing, Rx, TakenRecv, Then},
    send_queue::{Outcome, SendQueue},
    soft_qp::SoftQp,
};
use crate::{
    failure::seeded::seeded,
    provider::soft::{
        limits::MAX_MESSAGE,
        memory::{Atomic, Piece, peer_memory as direct},
        wire::{FLAG_ACK, FLAG_IMM, FLAG_PLACED, Header, NO_MEMORY, Opcode},
    },
    verbs::{Access, WcOpcode, WcStatus},
};

/// Kinds of own requests that an atomic response answers.
const ATOMICS: [WcOpcode; 3] = [WcOpcode::CompSwap, WcOpcode::FetchAdd, WcOpcode::FetchOp];

impl SoftQp {
    /// Decides how to handle a header. Its payload has not been read yet.
    pub(crate) fn dispatch(&self, rx: &mut Rx, link: &Link, header: &Header) -> Action {
        let Some(opcode) = Opcode::from_code(header.opcode) else {
            return Action::ProtocolError("unknown kind of frame");
        };
        let payload = matches!(opcode, Opcode::Send | Opcode::Write | Opcode::ReadResponse);
        if !payload && header.payload_len.get() != 0 {
            return Action::ProtocolError("payload on a frame that has none");
        }
        if u64::from(header.payload_len.get()) > MAX_MESSAGE {
            return Action::ProtocolError("message longer than the limit");
        }
        match opcode {
            Opcode::Send
            | Opcode::Write
            | Opcode::Read
            | Opcode::CompareSwap
            | Opcode::FetchAdd
            | Opcode::FetchOp => self.on_request(rx, link, header, opcode),
            Opcode::Ack => {
                let msn = header.msn.get();
                from_outcome(self.answered(link, msn, |sq| sq.acked(msn)))
            }
            Opcode::Nak => self.on_nak(header),
            Opcode::ReadResponse => {
                let (msn, len) = (header.msn.get(), header.payload_len.get());
                let mut sq = self.sq();
                if !self.was_sent(msn) {
                    return Action::ProtocolError("answer to a request that was not sent");
                }
                match sq.response(msn, len, &[WcOpcode::RdmaRead]) {
                    Ok(pieces) => Action::Land(Landing::new(pieces, len as usize, Then::ReadDone(msn))),
                    Err(outcome) => from_outcome(outcome),
                }
            }
            Opcode::AtomicResponse => from_outcome(self.answered(link, header.msn.get(), |sq| {
                match sq.response(header.msn.get(), 8, &ATOMICS) {
                    Ok(pieces) => {
                        if let Some(piece) = pieces.first() {
                            direct::store_word(piece, header.arg0.get());
                        }
                        sq.response_done(pieces)
                    }
                    Err(outcome) => outcome,
                }
            })),
            Opcode::Memory => self.on_memory(rx, link, header),
            Opcode::Tether => self.on_tether(rx, link),
            Opcode::Fence => self.on_fence(link, header),
            Opcode::Fenced => self.on_fenced(),
        }
    }

    /// Handles a request of the peer, in the order of its sequence numbers.
    #[inline]
    fn on_request(&self, rx: &mut Rx, link: &Link, header: &Header, opcode: Opcode) -> Action {
        let msn = header.msn.get();
        if msn != rx.expected_msn {
            return Action::ProtocolError("request out of sequence");
        }
        // Every request may cause an answer, so a peer that reads no answers is not served
        // further.
        if self.must_wait_for_tx() {
            return Action::NotReady;
        }
        let action = match opcode {
            Opcode::Send => self.on_send(header),
            Opcode::Write => self.on_write(link, header),
            Opcode::Read => self.on_read(header),
            _ => self.on_atomic(header, opcode),
        };
        if !matches!(action, Action::NotReady) {
            rx.expected_msn = msn.wrapping_add(1);
        }
        action
    }

    /// Handles the peer's refusal of an own request.
    fn on_nak(&self, header: &Header) -> Action {
        let msn = header.msn.get();
        {
            let _sq = self.sq();
            if !self.was_sent(msn.wrapping_sub(1)) {
                return Action::ProtocolError("refusal of a request before which others were not sent");
            }
            // Stops sending before a completion releases memory.
            self.tx().close();
        }
        let status = WcStatus::from_code(u32::from(header.status));
        from_outcome(self.sq().refused(msn, status))
    }

    /// Processes an answer to own request `msn` and starts the requests that waited for it.
    pub(crate) fn answered(
        &self,
        link: &Link,
        msn: u32,
        take: impl FnOnce(&mut SendQueue<SoftQp>) -> Outcome,
    ) -> Outcome {
        let mut sq = self.sq();
        if !self.was_sent(msn) {
            return Outcome::ProtocolError;
        }
        match take(&mut sq) {
            Outcome::Ok if sq.holds() && self.release_held(link, &mut sq) => Outcome::Failed,
            outcome => outcome,
        }
    }

    fn on_send(&self, header: &Header) -> Action {
        let len = header.payload_len.get();
        let imm = (header.flags & FLAG_IMM != 0).then(|| header.imm.get());
        let Some(recv) = self.take_recv() else { return Action::NotReady };
        let taken = TakenRecv { wr_id: recv.wr_id, byte_len: len, imm, opcode: WcOpcode::Recv };
        let msn = header.msn.get();
        let room: u64 = recv.sges.iter().map(|sge| u64::from(sge.length)).sum();
        if u64::from(len) > room {
            self.complete_recv(taken, WcStatus::LocLenErr);
            return Action::Refuse { msn, status: WcStatus::RemInvReqErr };
        }
        let mut pieces = Pieces::new();
        for sge in &recv.sges {
            match self.regions().local(sge, Access::LOCAL_WRITE) {
                Some(piece) => pieces.push(piece),
                None => {
                    self.complete_recv(taken, WcStatus::LocProtErr);
                    return Action::Refuse { msn, status: WcStatus::RemOpErr };
                }
            }
        }
        let then = Then::Executed { msn, ack: header.flags & FLAG_ACK != 0, recv: Some(taken) };
        Action::Land(Landing::new(pieces, len as usize, then))
    }

    fn on_write(&self, link: &Link, header: &Header) -> Action {
        let msn = header.msn.get();
        let len = header.payload_len.get();
        let placed = header.flags & FLAG_PLACED != 0;
        if placed && (!link.shares || len != 0 || header.arg0.get() > MAX_MESSAGE) {
            return Action::ProtocolError("payload placed by a peer that cannot have done so");
        }
        let mut pieces = Pieces::new();
        if len > 0 {
            let (key, addr) = (header.rkey.get(), header.addr.get());
            let at = |addr| self.regions().remote(key, addr, u64::from(len), Access::REMOTE_WRITE);
            let misplaced = seeded!("write-misplaced", at(addr.wrapping_add(64)), None);
            match misplaced.or_else(|| at(addr)) {
                Some(piece) => pieces.push(piece),
                None => return Action::Refuse { msn, status: WcStatus::RemAccessErr },
            }
        }
        let mut recv = None;
        if header.flags & FLAG_IMM != 0 {
            let Some(posted) = self.take_recv() else { return Action::NotReady };
            recv = Some(TakenRecv {
                wr_id: posted.wr_id,
                byte_len: if placed { header.arg0.get() as u32 } else { len },
                imm: Some(header.imm.get()),
                opcode: WcOpcode::RecvRdmaWithImm,
            });
        }
        let then = Then::Executed { msn, ack: header.flags & FLAG_ACK != 0, recv };
        Action::Land(Landing::new(pieces, len as usize, then))
    }

    fn on_read(&self, header: &Header) -> Action {
        let msn = header.msn.get();
        let len = header.length.get();
        if u64::from(len) > MAX_MESSAGE {
            return Action::Refuse { msn, status: WcStatus::RemInvReqErr };
        }
        let mut response = Header::new(Opcode::ReadResponse, msn);
        response.payload_len = len.into();
        if len == 0 {
            self.tx().answer(&response);
            return Action::Next;
        }
        let (key, addr) = (header.rkey.get(), header.addr.get());
        match self.regions().remote(key, addr, u64::from(len), Access::REMOTE_READ) {
            Some(piece) => {
                let mut tx = self.tx();
                tx.answer(&response);
                // An aligned word is read as a whole. The kernel copies bytes in any unit.
                if piece.len == 8 && piece.ptr.addr().is_multiple_of(8) {
                    tx.bytes(&word(&piece).load(Ordering::Acquire).to_ne_bytes());
                } else {
                    tx.memory(piece, None);
                }
                Action::Next
            }
            None => Action::Refuse { msn, status: WcStatus::RemAccessErr },
        }
    }

    fn on_atomic(&self, header: &Header, opcode: Opcode) -> Action {
        let msn = header.msn.get();
        let op = match opcode {
            Opcode::CompareSwap => {
                Atomic::CompareSwap { compare: header.arg0.get(), swap: header.arg1.get() }
            }
            Opcode::FetchAdd => Atomic::FetchAdd { add: header.arg0.get() },
            _ => match header.atomic_op() {
                Some(op) => Atomic::FetchOp(op),
                None => return Action::ProtocolError("unknown atomic"),
            },
        };
        let (key, addr) = (header.rkey.get(), header.addr.get());
        if !addr.is_multiple_of(8) {
            return Action::Refuse { msn, status: WcStatus::RemInvReqErr };
        }
        let Some(piece) = self.regions().remote(key, addr, 8, Access::REMOTE_ATOMIC) else {
            return Action::Refuse { msn, status: WcStatus::RemAccessErr };
        };
        let mut response = Header::new(Opcode::AtomicResponse, msn);
        let old = direct::apply(word(&piece), op);
        response.arg0 = seeded!("old-value-lost", word(&piece).load(Ordering::SeqCst), old).into();
        self.tx().answer(&response);
        Action::Next
    }

    fn on_memory(&self, rx: &mut Rx, link: &Link, header: &Header) -> Action {
        if !link.shares {
            return Action::ProtocolError("memory handle on a connection that carries none");
        }
        // A side that maps nothing has refused the handle.
        let Some(peer) = &link.peer else { return Action::Next };
        if rx.descriptors.len() != 1 || peer.is_full() {
            return Action::ProtocolError("memory frame without its one handle, or one too many");
        }
        let fd = rx.descriptors.remove(0);
        let Ok(len) = usize::try_from(header.arg0.get()) else {
            return Action::ProtocolError("memory too long to map");
        };
        let writable = header.flags & FLAG_PLACED != 0;
        match peer.add(header.arg1.get(), fd, len, writable) {
            Ok(()) => Action::Next,
            Err(e) => {
                log::warn!("queue pair {}: {e}", self.number());
                Action::ProtocolError("unusable memory handle")
            }
        }
    }

    /// Finishes the executions in progress, and removes memory that the peer no longer exports.
    fn on_fence(&self, link: &Link, header: &Header) -> Action {
        if !link.shares {
            return Action::ProtocolError("a fence on a connection without mapped memory");
        }
        if self.must_wait_for_tx() {
            return Action::NotReady;
        }
        match (&link.peer, header.arg1.get()) {
            (None, _) => {}
            (Some(peer), NO_MEMORY) => peer.await_executions(),
            (Some(peer), id) => peer.forget(id),
        }
        self.tx().answer(&Header::new(Opcode::Fenced, 0));
        Action::Next
    }

    fn on_fenced(&self) -> Action {
        match self.confirm_fence() {
            true => Action::Next,
            false => Action::ProtocolError("a confirmation of a fence that was not sent"),
        }
    }

    fn on_tether(&self, rx: &mut Rx, link: &Link) -> Action {
        match (link.shares, &link.peer) {
            (true, None) => Action::Next,
            (true, Some(peer)) if rx.descriptors.len() == 1 => {
                match peer.hold_tether(rx.descriptors.remove(0)) {
                    true => Action::Next,
                    false => Action::ProtocolError("a second tether"),
                }
            }
            _ => Action::ProtocolError("a tether without its one descriptor"),
        }
    }
}

fn word(piece: &Piece) -> &AtomicU64 {
    debug_assert_eq!(piece.len, 8);
    // SAFETY: 8 checked bytes of a region that the piece keeps mapped, at an aligned address.
    // AtomicU64 allows concurrent modification.
    unsafe { AtomicU64::from_ptr(piece.ptr.cast()) }
}

fn from_outcome(outcome: Outcome) -> Action {
    match outcome {
        Outcome::Ok => Action::Next,
        Outcome::Failed => Action::Fail,
        Outcome::ProtocolError => Action::ProtocolError("answer to a request that was not made"),
    }
}
