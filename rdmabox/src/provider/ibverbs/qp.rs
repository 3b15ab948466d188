//! Reliable connected queue pairs.
//!
//! The device has the queues; what is kept here is the state as the model has it, which places of the queues are taken (a
//! device lets some places be used again before the completion was polled, and others not), and the stream over which the
//! peer was found, whose end is the end of the peer.
//!
//! **The end.** A queue pair fails once, for whatever reason: its device reports an error, the peer's stream ends, or
//! somebody wants it to. The device's queue pair then goes to Err and the stream is shut, so that the peer hears of it. That
//! alone does not mean that the device is done with the memory of what was posted. [`QueuePair::to_error`] waits for that: it
//! posts a marker to each queue, which is flushed after everything before it (as `ib_drain_qp` of Linux does), and takes
//! what completes meanwhile out of the device into the stash of the completion queue. Requests that are posted to a queue pair in
//! Err go to the stash directly: not every device looks at a queue that it has flushed.
//!
//! Locks, in the order in which they may be taken: `drained`, `changing`, one of the lists, that of a completion queue.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use ibverbs_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use parking_lot::Mutex;
use socket2::SockRef;

use super::{
    Gid,
    cq::IbvCq,
    device::Core,
    endpoint::{Endpoint, Local, Path},
    handles::RawQp,
    handshake::Line,
    lists::{RecvList, SendList},
    pd::IbvPd,
    ring::{Name, Place, Ring},
    select, status,
};
use crate::verbs::{
    PostError, PostErrorReason, QpCaps, QpState, QueuePair, RecvWr, Rendezvous, SendOp, SendWr, VerbsError,
    WcStatus,
};

/// Time after which a packet without an answer is sent again: 4.096 microseconds times 2 to this, 268 ms.
const ACK_TIMEOUT: u8 = 16;
/// How often that is done: the peer is given up after two seconds. (A peer that ends is heard of at once, by its stream.) 7
/// would be the most; Soft-RoCE was seen to go on for ever with it.
const RETRY_COUNT: u8 = 6;
/// What a peer that finds no receive here is told to wait: code 0, 655 ms.
const RNR_TIMER: u8 = 0;
/// How often this side does so: four seconds. 7 means for ever.
const RNR_RETRY_COUNT: u8 = 6;
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// Time for a device to flush its queues. It takes microseconds, or is broken.
const DRAIN: Duration = Duration::from_secs(5);
/// Looks at the completion queues before the waiting thread sleeps in between.
const LOOKS: u32 = 1000;

#[derive(Debug)]
pub(super) struct IbvQp {
    num: u32,
    caps: QpCaps,
    max_msg_sz: u64,
    me: Weak<IbvQp>,
    state: AtomicU8,
    /// Held over a change of the device's state, with the check of ours.
    changing: Mutex<()>,
    drained: Mutex<bool>,
    /// The device did not stop.
    is_stuck: AtomicBool,
    sends: Mutex<SendList>,
    recvs: Mutex<RecvList>,
    send_ring: Arc<Ring>,
    recv_ring: Arc<Ring>,
    send_place: Place,
    recv_place: Place,
    stream: OnceLock<Rendezvous>,
    raw: RawQp,
    send_cq: Arc<IbvCq>,
    recv_cq: Arc<IbvCq>,
    core: Arc<Core>,
    pd: Arc<IbvPd>,
}

fn limit(what: &'static str, asked: u32, limit: u32) -> Result<(), VerbsError> {
    if asked <= limit {
        return Ok(());
    }
    Err(VerbsError::Limit { what, asked: asked.into(), limit: limit.into() })
}

impl IbvQp {
    pub(super) fn new(
        pd: Arc<IbvPd>,
        send_cq: Arc<IbvCq>,
        recv_cq: Arc<IbvCq>,
        caps: QpCaps,
    ) -> Result<Arc<IbvQp>, VerbsError> {
        let core = Arc::clone(pd.core());
        let attr = core.attr();
        limit("send queue depth", caps.max_send_wr, attr.max_qp_wr)?;
        limit("receive queue depth", caps.max_recv_wr, attr.max_qp_wr)?;
        limit("send scatter/gather elements", caps.max_send_sge, attr.max_sge)?;
        limit("receive scatter/gather elements", caps.max_recv_sge, attr.max_sge)?;
        limit("inline data", caps.max_inline_data, attr.max_inline_data)?;
        let cap = ibv_qp_cap {
            // One place more each, for the marker.
            max_send_wr: caps.max_send_wr + 1,
            max_recv_wr: caps.max_recv_wr + 1,
            max_send_sge: caps.max_send_sge.max(1),
            max_recv_sge: caps.max_recv_sge.max(1),
            max_inline_data: caps.max_inline_data,
        };
        let init = ibv_qp_init_attr { cap, qp_type: ibv_qp_type::IBV_QPT_RC, ..ibv_qp_init_attr::default() };
        let raw = RawQp::new(pd.raw(), send_cq.raw(), recv_cq.raw(), init)
            .map_err(|e| VerbsError::os("ibv_create_qp", e))?;
        use ibverbs_sys::ibv_access_flags as access;
        let remote = access::IBV_ACCESS_REMOTE_WRITE.0
            | access::IBV_ACCESS_REMOTE_READ.0
            | access::IBV_ACCESS_REMOTE_ATOMIC.0;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: core.port().number,
            // The regions say what a peer may do.
            qp_access_flags: access::IBV_ACCESS_LOCAL_WRITE.0 | remote,
            ..no_attr()
        };
        raw.modify(
            attr,
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS,
        )
        .map_err(|e| VerbsError::os("ibv_modify_qp to Init", e))?;
        let num = core.number();
        let send_ring = Arc::new(Ring::new(num, false, caps.max_send_wr));
        let recv_ring = Arc::new(Ring::new(num, true, caps.max_recv_wr));
        let mut full = false;
        let qp = Arc::new_cyclic(|me: &Weak<IbvQp>| {
            let mut enter = |cq: &IbvCq, ring: &Arc<Ring>| {
                let place = cq.enter(ring, me);
                full |= place.is_none();
                // Generation 0 with the last index: no place of this queue.
                place.unwrap_or(Place { index: u16::MAX, generation: 0 })
            };
            let send_place = enter(&send_cq, &send_ring);
            let recv_place = enter(&recv_cq, &recv_ring);
            IbvQp {
                num,
                caps,
                max_msg_sz: core.attr().max_msg_sz,
                me: Weak::clone(me),
                state: AtomicU8::new(QpState::Init as u8),
                changing: Mutex::new(()),
                drained: Mutex::new(false),
                is_stuck: AtomicBool::new(false),
                sends: Mutex::new(SendList::new(caps.max_send_wr as usize)),
                recvs: Mutex::new(RecvList::new(caps.max_recv_wr as usize)),
                send_ring,
                recv_ring,
                send_place,
                recv_place,
                stream: OnceLock::new(),
                raw,
                send_cq,
                recv_cq,
                core,
                pd,
            }
        });
        if full {
            let limit = super::ring::MAX_PLACES as u64;
            return Err(VerbsError::Limit {
                what: "queue pairs of a completion queue",
                asked: limit + 1,
                limit,
            });
        }
        qp.core.watch().add_qp(num, qp.raw.addr(), &qp.me);
        Ok(qp)
    }

    /// Goes to Err, once, and lets the peer know. Does not wait for anything.
    pub(super) fn fail(&self, why: &str) {
        let _changing = self.changing.lock();
        if self.state.swap(QpState::Err as u8, Ordering::AcqRel) == QpState::Err as u8 {
            return;
        }
        log::debug!("queue pair {}: {why}", self.num);
        self.to_err_on_device();
        if let Some(stream) = self.stream.get() {
            self.core.watch().remove_stream(fd_of(stream));
            // It may be shut already.
            let _ = sock(stream).shutdown(std::net::Shutdown::Both);
        }
    }

    fn to_err_on_device(&self) {
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..no_attr() };
        if let Err(e) = self.raw.modify(attr, mask::IBV_QP_STATE) {
            log::error!("queue pair {}: ibv_modify_qp to Err: {e}", self.num);
        }
    }

    /// Waits until the device is done with everything that was posted; in state Err.
    fn drain(&self) {
        let mut drained = self.drained.lock();
        if std::mem::replace(&mut *drained, true) {
            return;
        }
        self.post_markers();
        // Soft-RoCE looks at the receives of a queue pair in Err only when it is told again.
        self.to_err_on_device();
        let start = Instant::now();
        let mut looks = 0u32;
        loop {
            for cq in [&self.send_cq, &self.recv_cq] {
                if let Err(e) = cq.stash_all() {
                    log::error!("queue pair {}: {e}", self.num);
                }
            }
            if self.send_ring.is_quiet() && self.recv_ring.is_quiet() {
                return;
            }
            looks = looks.saturating_add(1);
            if looks < LOOKS {
                std::thread::yield_now();
            } else if start.elapsed() < DRAIN {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                break;
            }
        }
        log::error!(
            "queue pair {}: the device does not flush it; it is reset, and its memory is kept",
            self.num
        );
        self.is_stuck.store(true, Ordering::Release);
        self.pd.gets_stuck();
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RESET, ..no_attr() };
        if let Err(e) = self.raw.modify(attr, mask::IBV_QP_STATE) {
            log::error!("queue pair {}: ibv_modify_qp to Reset: {e}", self.num);
        }
    }

    fn post_markers(&self) {
        let marker = |place, ring: &Ring| Name { place, is_marker: true, sequence: ring.next() }.encode();
        if self.send_ring.is_fresh() {
            self.send_ring.set_quiet();
        } else {
            let mut sends = self.sends.lock();
            sends.clear();
            sends.add_marker(marker(self.send_place, &self.send_ring));
            if let Some(e) = sends.post(&self.raw).error {
                log::error!("queue pair {}: no marker behind its sends: {e}", self.num);
            }
        }
        if self.recv_ring.is_fresh() {
            self.recv_ring.set_quiet();
        } else {
            let mut recvs = self.recvs.lock();
            recvs.clear();
            recvs.add(marker(self.recv_place, &self.recv_ring), &RecvWr { wr_id: 0, sges: &[] });
            if let Some(e) = recvs.post(&self.raw).error {
                log::error!("queue pair {}: no marker behind its receives: {e}", self.num);
            }
        }
    }

    /// Takes the step from `from` to `to`, here and on the device, unless the queue pair has failed meanwhile.
    fn step(
        &self,
        from: QpState,
        to: QpState,
        attr: ibv_qp_attr,
        which: mask,
        explain: impl FnOnce(std::io::Error) -> VerbsError,
    ) -> Result<(), VerbsError> {
        let _changing = self.changing.lock();
        let state = self.state();
        if state != from {
            return Err(VerbsError::State { is: state, needs: from });
        }
        self.raw.modify(attr, which).map_err(explain)?;
        self.state.store(to as u8, Ordering::Release);
        Ok(())
    }

    fn find_peer(&self, line: &mut Line, near: Option<std::net::IpAddr>) -> Result<(), VerbsError> {
        let port = self.core.port();
        let chosen = self.core.gid_index();
        let gid = select::gid(&port, chosen, near).map_err(VerbsError::NoPath)?;
        let max_rd_atomic = u8::try_from(self.core.attr().max_qp_rd_atom).unwrap_or(u8::MAX);
        let local = Local { port: &port, gid, gid_is_chosen: chosen.is_some(), max_rd_atomic };
        let mut random = [0; 4];
        getrandom::fill(&mut random)
            .map_err(|e| VerbsError::os("getrandom", std::io::Error::other(e.to_string())))?;
        let ours = Endpoint::new(&local, self.raw.number(), u32::from_ne_bytes(random));
        let theirs = line.exchange(&ours)?;
        let path = ours.path_to(&local, &theirs).map_err(VerbsError::NoPath)?;
        let device = &self.core.attr().name;
        let explain = |e: std::io::Error| {
            let (from, to) = match (gid, path.global) {
                (Some(entry), Some((to, _))) => {
                    (format!("GID {} (index {})", entry.gid, entry.index), format!("GID {}", Gid(to)))
                }
                _ => (format!("LID {}", port.lid), format!("LID {}", path.dlid)),
            };
            VerbsError::NoPath(format!(
                "{device} port {} with {from} does not reach {to}: {e}; another address may be chosen with \
                 --gid-index, at either side",
                port.number
            ))
        };
        let (attr, which) = receive_attr(&path, port.number);
        self.step(QpState::Init, QpState::Rtr, attr, which, explain)?;
        let (attr, which) = send_attr(&path);
        self.step(QpState::Rtr, QpState::Rts, attr, which, |e| VerbsError::os("ibv_modify_qp to Rts", e))?;
        // Nobody sends before both can receive.
        line.meet()
    }

    fn refuses(&self, room: u32, wr: &SendWr<'_>) -> Option<PostErrorReason> {
        let caps = &self.caps;
        if room == 0 {
            return Some(PostErrorReason::QueueFull { depth: caps.max_send_wr });
        }
        let (asked, limit) = (wr.sges.len(), caps.max_send_sge);
        if asked > limit as usize {
            return Some(PostErrorReason::TooManySges { asked, limit });
        }
        let asked = wr.byte_len();
        if asked > self.max_msg_sz {
            return Some(PostErrorReason::TooLong { asked, limit: self.max_msg_sz });
        }
        if let Some(bytes) = wr.inline {
            let asked = bytes.len() as u64;
            let allowed = matches!(wr.op, SendOp::Send { .. } | SendOp::Write { .. }) && wr.sges.is_empty();
            let limit = if allowed { caps.max_inline_data } else { 0 };
            if !allowed || asked > u64::from(limit) {
                return Some(PostErrorReason::Inline { asked, limit });
            }
        }
        let atomic = matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        (atomic && (wr.sges.len() != 1 || asked != 8)).then_some(PostErrorReason::AtomicShape)
    }

    /// How a request fails that the device cannot be given as it is: an atomic would be executed at the peer before the device
    /// finds that its result has no place here, and some drivers refuse one that is not aligned with no word of why.
    fn doom(&self, wr: &SendWr<'_>) -> Option<WcStatus> {
        let (SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. }) = wr.op else {
            return None;
        };
        let lands = wr.sges.first().is_some_and(|sge| self.pd.may_write(sge));
        match (lands, remote.addr.is_multiple_of(8)) {
            (false, _) => Some(WcStatus::LocProtErr),
            (true, false) => Some(WcStatus::RemInvReqErr),
            (true, true) => None,
        }
    }

    fn refuses_recv(&self, room: u32, wr: &RecvWr<'_>) -> Option<PostErrorReason> {
        if room == 0 {
            return Some(PostErrorReason::QueueFull { depth: self.caps.max_recv_wr });
        }
        let (asked, limit) = (wr.sges.len(), self.caps.max_recv_sge);
        (asked > limit as usize).then_some(PostErrorReason::TooManySges { asked, limit })
    }

    /// How far a list got: what the device took, or why less than what was asked for.
    fn outcome(
        taken: super::lists::Taken,
        refused: Option<PostErrorReason>,
        depth: u32,
    ) -> Result<(), PostError> {
        let posted = taken.count;
        let reason = match taken.error {
            Some(e) if e.raw_os_error() == Some(libc::ENOMEM) => Some(PostErrorReason::QueueFull { depth }),
            Some(e) => Some(PostErrorReason::Device(e.raw_os_error().unwrap_or(libc::EIO))),
            None => refused,
        };
        reason.map_or(Ok(()), |reason| Err(PostError { posted, reason }))
    }

    /// Completes sends as flushed, in state Err.
    fn flush_sends(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        self.drain();
        let _sends = self.sends.lock();
        for (posted, wr) in list.iter().enumerate() {
            if let Some(reason) = self.refuses(self.send_ring.room(), wr) {
                return Err(PostError { posted, reason });
            }
            flush(&self.send_cq, self.send_place, &self.send_ring, wr.wr_id);
        }
        Ok(())
    }

    fn flush_recvs(&self, list: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.drain();
        let _recvs = self.recvs.lock();
        for (posted, wr) in list.iter().enumerate() {
            if let Some(reason) = self.refuses_recv(self.recv_ring.room(), wr) {
                return Err(PostError { posted, reason });
            }
            flush(&self.recv_cq, self.recv_place, &self.recv_ring, wr.wr_id);
        }
        Ok(())
    }
}

/// Reports a request as flushed that the device never sees.
fn flush(cq: &IbvCq, place: Place, ring: &Ring, wr_id: u64) {
    let sequence = ring.next();
    ring.note(sequence, wr_id);
    ring.advance(1);
    cq.push(Name { place, is_marker: false, sequence }, status::flushed(wr_id, ring.is_recv, ring.qp_num));
}

fn sock(stream: &Rendezvous) -> SockRef<'_> {
    match stream {
        Rendezvous::Tcp(stream) => SockRef::from(stream),
        Rendezvous::Tls(stream) => SockRef::from(stream.tcp()),
        Rendezvous::Unix(stream) => SockRef::from(stream),
    }
}

fn fd_of(stream: &Rendezvous) -> BorrowedFd<'_> {
    match stream {
        Rendezvous::Tcp(stream) => stream.as_fd(),
        Rendezvous::Tls(stream) => stream.tcp().as_fd(),
        Rendezvous::Unix(stream) => stream.as_fd(),
    }
}

fn no_attr() -> ibv_qp_attr {
    // SAFETY: the structure consists of integers and of unions of these, for all of which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// What a queue pair needs in order to receive from the other end of `path`.
fn receive_attr(path: &Path, port: u8) -> (ibv_qp_attr, mask) {
    let mut ah_attr = ibv_ah_attr { dlid: path.dlid, port_num: port, ..no_attr().ah_attr };
    if let Some((gid, index)) = path.global {
        ah_attr.is_global = 1;
        ah_attr.grh = ibv_global_route {
            dgid: ibv_gid { raw: gid },
            sgid_index: index,
            hop_limit: HOP_LIMIT,
            ..no_attr().ah_attr.grh
        };
    }
    let attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        path_mtu: path.mtu,
        dest_qp_num: path.remote_qp_num,
        rq_psn: path.remote_psn,
        max_dest_rd_atomic: path.max_dest_rd_atomic,
        min_rnr_timer: RNR_TIMER,
        ah_attr,
        ..no_attr()
    };
    let which = mask::IBV_QP_STATE
        | mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN
        | mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask::IBV_QP_MIN_RNR_TIMER;
    (attr, which)
}

/// What it needs in order to send there as well.
fn send_attr(path: &Path) -> (ibv_qp_attr, mask) {
    let attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTS,
        sq_psn: path.local_psn,
        timeout: ACK_TIMEOUT,
        retry_cnt: RETRY_COUNT,
        rnr_retry: RNR_RETRY_COUNT,
        max_rd_atomic: path.max_rd_atomic,
        ..no_attr()
    };
    let which = mask::IBV_QP_STATE
        | mask::IBV_QP_SQ_PSN
        | mask::IBV_QP_TIMEOUT
        | mask::IBV_QP_RETRY_CNT
        | mask::IBV_QP_RNR_RETRY
        | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    (attr, which)
}

impl QueuePair for IbvQp {
    fn qp_num(&self) -> u32 {
        self.num
    }

    fn state(&self) -> QpState {
        match self.state.load(Ordering::Acquire) {
            s if s == QpState::Reset as u8 => QpState::Reset,
            s if s == QpState::Init as u8 => QpState::Init,
            s if s == QpState::Rtr as u8 => QpState::Rtr,
            s if s == QpState::Rts as u8 => QpState::Rts,
            _ => QpState::Err,
        }
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    fn connect(&self, stream: Rendezvous, timeout: Duration) -> Result<(), VerbsError> {
        let state = self.state();
        if state != QpState::Init {
            return Err(VerbsError::State { is: state, needs: QpState::Init });
        }
        let near = match &stream {
            Rendezvous::Tcp(stream) => {
                // A word at a time is said.
                let _ = stream.set_nodelay(true);
                stream.local_addr().ok().map(|addr| addr.ip())
            }
            Rendezvous::Tls(_) => {
                self.to_error();
                let why =
                    "the peers have met over TLS, and what an RDMA device carries cannot be sealed by that";
                return Err(VerbsError::Protocol(why.into()));
            }
            Rendezvous::Unix(_) => None,
        };
        let mut line = Line::new(stream, Instant::now().checked_add(timeout));
        let connected = self.find_peer(&mut line, near).and_then(|()| {
            if self.stream.set(line.into_stream()).is_err() {
                return Err(VerbsError::State { is: self.state(), needs: QpState::Init });
            }
            match self.stream.get() {
                Some(stream) => self.core.watch().add_stream(self.num, fd_of(stream)),
                None => Ok(()),
            }
        });
        if let Err(e) = connected {
            self.to_error();
            return Err(e);
        }
        if self.state() == QpState::Err {
            // It failed before the stream was known to whoever failed it.
            if let Some(stream) = self.stream.get() {
                self.core.watch().remove_stream(fd_of(stream));
                let _ = sock(stream).shutdown(std::net::Shutdown::Both);
            }
            return Err(VerbsError::PeerGone);
        }
        Ok(())
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        if list.is_empty() {
            return Ok(());
        }
        let mut sends = self.sends.lock();
        match self.state() {
            QpState::Rts => {}
            QpState::Err => {
                drop(sends);
                return self.flush_sends(list);
            }
            state => return Err(PostError { posted: 0, reason: PostErrorReason::State(state) }),
        }
        sends.clear();
        let (first, room) = (self.send_ring.next(), self.send_ring.room());
        let mut refused = None;
        for (wr, index) in list.iter().zip(0..) {
            refused = self.refuses(room - index, wr);
            if refused.is_some() {
                break;
            }
            let sequence = first.wrapping_add(index);
            self.send_ring.note(sequence, wr.wr_id);
            let name = Name { place: self.send_place, is_marker: false, sequence }.encode();
            match self.doom(wr) {
                None => sends.add(name, wr),
                Some(status) => {
                    self.send_ring.doom(sequence, status);
                    sends.add_doomed(name);
                }
            }
        }
        let taken = sends.post(&self.raw);
        self.send_ring.advance(taken.count as u32);
        Self::outcome(taken, refused, self.caps.max_send_wr)
    }

    fn post_recv(&self, list: &[RecvWr<'_>]) -> Result<(), PostError> {
        if list.is_empty() {
            return Ok(());
        }
        let mut recvs = self.recvs.lock();
        match self.state() {
            QpState::Err => {
                drop(recvs);
                return self.flush_recvs(list);
            }
            QpState::Reset => {
                return Err(PostError { posted: 0, reason: PostErrorReason::State(QpState::Reset) });
            }
            _ => {}
        }
        recvs.clear();
        let (first, room) = (self.recv_ring.next(), self.recv_ring.room());
        let mut refused = None;
        for (wr, index) in list.iter().zip(0..) {
            refused = self.refuses_recv(room - index, wr);
            if refused.is_some() {
                break;
            }
            let sequence = first.wrapping_add(index);
            self.recv_ring.note(sequence, wr.wr_id);
            recvs.add(Name { place: self.recv_place, is_marker: false, sequence }.encode(), wr);
        }
        let taken = recvs.post(&self.raw);
        self.recv_ring.advance(taken.count as u32);
        Self::outcome(taken, refused, self.caps.max_recv_wr)
    }

    fn to_error(&self) {
        self.fail("ended here");
        self.drain();
    }

    fn is_stopped(&self) -> bool {
        !self.is_stuck.load(Ordering::Acquire)
    }
}

impl Drop for IbvQp {
    fn drop(&mut self) {
        self.core.watch().remove_qp(self.num, self.raw.addr());
        self.send_cq.leave(self.send_place);
        self.recv_cq.leave(self.recv_place);
        if let Some(stream) = self.stream.get() {
            self.core.watch().remove_stream(fd_of(stream));
            let _ = sock(stream).shutdown(std::net::Shutdown::Both);
        }
    }
}
