//! Posts send work requests: checks them, then executes them on mapped memory or frames them for
//! the wire.
//!
//! A request that must not start yet is held, together with every request behind it. A fenced
//! request waits for earlier READs and atomics. A request on mapped memory waits for earlier
//! messages, because the responder would not have reached it yet. Held requests start when the
//! answers arrive.

use std::time::Instant;

use super::{
    execute::{Failed, execute, execute_op},
    link::{HANDLE_WAIT, Link},
    request::{Checked, Payload, Pieces, Posted},
    send_queue::SendQueue,
    soft_qp::SoftQp,
};
use crate::{
    provider::soft::{
        limits::MAX_MESSAGE,
        memory::{PeerMemory, Refused},
        wire::{FLAG_ACK, FLAG_IMM, FLAG_PLACED, Header, Opcode},
    },
    verbs::{
        Access, DirectOp, PostErrorReason, QpState, QueuePair, RemoteAddr, SendFlags, SendOp, SendWr,
        WcStatus,
    },
};

/// Result of starting a request.
enum Started {
    /// The request's frames wait to be sent.
    Framed,
    /// The request is complete once all earlier requests are. `failed` if it failed and was
    /// reported.
    Executed { failed: bool },
}

impl SoftQp {
    /// Queues the requests of a list up to the first refused one. Sends nothing.
    pub(crate) fn post_list(&self, list: &[SendWr<'_>]) -> Posted {
        let mut posted = Posted { count: 0, refused: None, framed: false, failed: false };
        let mut give_up: Option<Instant> = None;
        while posted.count < list.len() {
            let missing =
                self.post_until_missing(list, &mut posted, give_up.is_some_and(|t| Instant::now() > t));
            if posted.refused.is_some() {
                break;
            }
            if missing {
                give_up.get_or_insert_with(|| Instant::now() + HANDLE_WAIT);
                if !self.progress() {
                    std::thread::yield_now();
                }
            }
        }
        posted
    }

    /// Queues requests while the peer's memory is mapped. Returns true if a memory handle is
    /// missing. If `overdue`, a missing handle is an error instead.
    fn post_until_missing(&self, list: &[SendWr<'_>], posted: &mut Posted, overdue: bool) -> bool {
        let mut sq = self.sq();
        while let Some(wr) = list.get(posted.count) {
            let state = self.state();
            let link = match (state, self.link()) {
                (QpState::Rts, Some(link)) => Some(link),
                (QpState::Err, _) => None,
                _ => {
                    posted.refused = Some(PostErrorReason::State(state));
                    return false;
                }
            };
            if let Some(reason) = self.refuses(&sq, wr) {
                posted.refused = Some(reason);
                return false;
            }
            let mut checked = self.check_local(&mut sq, wr);
            sq.take_slot();
            let Some(link) = link.filter(|_| !sq.is_poisoned()) else {
                // Reported behind all unreported requests.
                checked.fault = Some(WcStatus::WrFlushErr);
                if sq.holds() {
                    sq.hold(checked.hold());
                } else {
                    sq.flush(checked.failed(WcStatus::WrFlushErr));
                }
                posted.count += 1;
                continue;
            };
            if sq.holds() || !may_start(&sq, link, &checked) {
                sq.hold(checked.hold());
                posted.count += 1;
                continue;
            }
            match self.start(link, &mut sq, checked) {
                Ok(Started::Framed) => posted.framed = true,
                Ok(Started::Executed { failed }) => posted.failed |= failed,
                Err(Refused::NotMapped) if !overdue => {
                    sq.return_slot();
                    return true;
                }
                Err(_) => {
                    let failed = self.check_local(&mut sq, wr).failed(WcStatus::RemAccessErr);
                    posted.failed |= sq.push(failed);
                }
            }
            posted.count += 1;
        }
        false
    }

    /// Starts held requests that may start now. Returns true if one of them failed. Those behind it
    /// stay held, and are flushed with the queue pair.
    pub(crate) fn release_held(&self, link: &Link, sq: &mut SendQueue<SoftQp>) -> bool {
        // The receiver's loop sends the frames after the current frame has been processed.
        while !sq.is_poisoned()
            && let Some(held) = sq.take_held(|sq, held| may_start(sq, link, &held.as_checked()))
        {
            match self.start(link, sq, held.as_checked()) {
                Ok(Started::Framed | Started::Executed { failed: false }) => {}
                Ok(Started::Executed { failed: true }) => return true,
                Err(_) => {
                    return sq.push(held.as_checked().failed(WcStatus::RemAccessErr));
                }
            }
        }
        false
    }

    /// Checks the local elements of a request.
    fn check_local<'a>(&self, sq: &mut SendQueue<SoftQp>, wr: &SendWr<'a>) -> Checked<'a> {
        let needs = match wr.op {
            SendOp::Send { .. } | SendOp::Write { .. } => Access::empty(),
            _ => Access::LOCAL_WRITE,
        };
        let mut pieces = sq.room_for(wr.sges.len());
        let mut fault = None;
        for sge in wr.sges {
            match self.regions().local(sge, needs) {
                Some(piece) => pieces.push(piece),
                None => fault = Some(WcStatus::LocProtErr),
            }
        }
        let payload = match wr.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Pieces(pieces),
        };
        Checked { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, len: wr.byte_len(), payload, fault }
    }

    /// Executes or frames one request. Returns `Err` if the peer's memory is not mapped.
    fn start(
        &self,
        link: &Link,
        sq: &mut SendQueue<SoftQp>,
        mut wr: Checked<'_>,
    ) -> Result<Started, Refused> {
        if let Some(status) = wr.fault {
            return Ok(self.fail_in_turn(link, sq, &wr, status));
        }
        if let Some(peer) = &link.peer
            && !matches!(wr.op, SendOp::Send { .. })
        {
            let started = self.start_direct(peer, sq, &wr);
            if let Payload::Pieces(pieces) = wr.payload {
                sq.take_back(pieces);
            }
            return started;
        }
        let msn = sq.take_msn();
        let mut tx = self.tx();
        // A message on a Unix socket is always acknowledged, because later requests may wait for
        // it.
        let wants_ack = wr.flags.contains(SendFlags::SIGNALED) || link.peer.is_some();
        tx.header(&request_header(&wr, msn, wants_ack));
        let sends = matches!(wr.op, SendOp::Send { .. } | SendOp::Write { .. });
        let mut landing = Pieces::new();
        match &mut wr.payload {
            Payload::Inline(bytes) => tx.bytes(bytes),
            Payload::Pieces(pieces) if sends => {
                pieces.drain(..).for_each(|piece| tx.memory(piece, Some(msn)));
                sq.take_back(std::mem::take(pieces));
            }
            Payload::Pieces(pieces) => landing = std::mem::take(pieces),
        }
        sq.push(wr.entry(msn, landing, None));
        Ok(Started::Framed)
    }

    /// Fails a request behind the requests before it. Those may be unsignaled, and no later request
    /// asks the peer to acknowledge them, because later requests are flushed. So an empty WRITE
    /// asks in the place of the failed request.
    fn fail_in_turn(
        &self,
        link: &Link,
        sq: &mut SendQueue<SoftQp>,
        wr: &Checked<'_>,
        status: WcStatus,
    ) -> Started {
        // A peer whose memory is mapped acknowledges each message.
        if link.peer.is_some() || !sq.awaits_peer() {
            return Started::Executed { failed: sq.push(wr.failed(status)) };
        }
        let msn = sq.take_msn();
        let mut header = Header::new(Opcode::Write, msn);
        header.flags = FLAG_ACK;
        self.tx().header(&header);
        sq.push(wr.entry(msn, Pieces::new(), Some(status)));
        Started::Framed
    }

    fn start_direct(
        &self,
        peer: &PeerMemory,
        sq: &mut SendQueue<SoftQp>,
        wr: &Checked<'_>,
    ) -> Result<Started, Refused> {
        let status = match execute(peer, wr) {
            Ok(()) => WcStatus::Success,
            Err(Failed::Status(status)) => status,
            Err(Failed::NotMapped) => return Err(Refused::NotMapped),
        };
        if let (SendOp::Write { imm: Some(imm), .. }, WcStatus::Success) = (wr.op, status) {
            // The bytes are in place, but the peer still has to consume a receive.
            let msn = sq.take_msn();
            let mut header = Header::new(Opcode::Write, msn);
            header.flags = FLAG_IMM | FLAG_PLACED | FLAG_ACK;
            header.imm = imm.into();
            header.arg0 = wr.len.into();
            self.tx().header(&header);
            sq.push(wr.entry(msn, Pieces::new(), None));
            return Ok(Started::Framed);
        }
        Ok(Started::Executed { failed: sq.push(wr.entry(0, Pieces::new(), Some(status))) })
    }

    /// Executes a request without a slot on the queue. Returns `None` if the request would overtake
    /// others or cannot execute.
    #[inline]
    pub(crate) fn execute_direct(&self, op: &mut DirectOp<'_>) -> Option<WcStatus> {
        let peer = self.link()?.peer.as_ref()?;
        // Taken before the state is read. A thread that ends the queue pair changes the state
        // first, then waits for executions.
        let executing = peer.try_execute()?;
        if self.state() != QpState::Rts || !self.is_idle() || op.byte_len() > MAX_MESSAGE {
            return None;
        }
        match execute_op(&executing, op) {
            Ok(()) => Some(WcStatus::Success),
            Err(Failed::Status(status)) => Some(status),
            // The memory handle is in transit; a post waits for it.
            Err(Failed::NotMapped) => None,
        }
    }

    /// Returns the reason if a device would refuse the request at the post.
    fn refuses(&self, sq: &SendQueue<SoftQp>, wr: &SendWr<'_>) -> Option<PostErrorReason> {
        let caps = self.caps();
        let has_room = sq.slots_in_use() < caps.max_send_wr;
        caps.refuse_send(has_room, MAX_MESSAGE, wr).or_else(|| {
            let is_malformed = wr.op.is_atomic() && (wr.sges.len() != 1 || wr.byte_len() != 8);
            is_malformed.then_some(PostErrorReason::AtomicShape)
        })
    }
}

fn may_start(sq: &SendQueue<SoftQp>, link: &Link, wr: &Checked<'_>) -> bool {
    if wr.fault.is_some() {
        return true;
    }
    let direct = link.peer.is_some() && !matches!(wr.op, SendOp::Send { .. });
    if direct { !sq.awaits_peer() } else { !(wr.flags.contains(SendFlags::FENCE) && sq.awaits_response()) }
}

fn request_header(wr: &Checked<'_>, msn: u32, wants_ack: bool) -> Header {
    let place = |header: &mut Header, remote: RemoteAddr| {
        header.rkey = remote.rkey.into();
        header.addr = remote.addr.into();
    };
    let len = (wr.len as u32).into();
    let mut header;
    match wr.op {
        SendOp::Send { imm } => {
            header = Header::new(Opcode::Send, msn);
            header.payload_len = len;
            set_imm(&mut header, imm);
        }
        SendOp::Write { remote, imm } => {
            header = Header::new(Opcode::Write, msn);
            header.payload_len = len;
            place(&mut header, remote);
            set_imm(&mut header, imm);
        }
        SendOp::Read { remote } => {
            header = Header::new(Opcode::Read, msn);
            header.length = len;
            place(&mut header, remote);
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            header = Header::new(Opcode::CompareSwap, msn);
            place(&mut header, remote);
            header.arg0 = compare.into();
            header.arg1 = swap.into();
        }
        SendOp::FetchAdd { remote, add } => {
            header = Header::new(Opcode::FetchAdd, msn);
            place(&mut header, remote);
            header.arg0 = add.into();
        }
        SendOp::FetchOp { remote, op } => {
            header = Header::new(Opcode::FetchOp, msn);
            place(&mut header, remote);
            header.set_atomic_op(op);
        }
    }
    if wants_ack {
        header.flags |= FLAG_ACK;
    }
    header
}

fn set_imm(header: &mut Header, imm: Option<u32>) {
    if let Some(imm) = imm {
        header.flags |= FLAG_IMM;
        header.imm = imm.into();
    }
}
