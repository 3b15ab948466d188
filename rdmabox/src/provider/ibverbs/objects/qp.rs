//! Reliable connected queue pairs on an RDMA device.
//!
//! The device has the queues. This module tracks the state, the occupied queue slots, and the
//! rendezvous stream, whose end reports the peer's disconnect. A queue pair fails once: after a
//! device error, the end of the stream, or a local request. It then moves to Err and shuts the
//! stream down, so that the peer notices. [`QueuePair::to_error`] also waits until the device has
//! finished with the memory of posted requests. It posts a marker to each queue, and the device
//! flushes the marker after every earlier request (as in Linux's `ib_drain_qp`). Meanwhile it moves
//! completions to the stash of the completion queue. Requests posted in Err go directly to the
//! stash, because some devices ignore flushed queues.
//!
//! # Concurrency
//! Any thread may call any method. Lock order: `drained`, `changing`, `sends` or `recvs`, a
//! completion queue's lock.

mod attributes;
mod checks;
mod drain;

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state};
use parking_lot::Mutex;
use socket2::SockRef;

use super::{
    core_state::Core,
    cq::IbvCq,
    lists::{RecvList, SendList},
    pd::IbvPd,
    ring::{Name, Place, Ring},
    watch::WatchedQp,
};
use crate::{
    provider::ibverbs::{
        connection::{Endpoint, Exchange, Local},
        discovery::{Gid, select},
        raw::RawQp,
    },
    verbs::{
        PostError, PostErrorReason, QpCaps, QpState, QueuePair, RecvWr, Rendezvous, SendOp, SendWr,
        VerbsError, WcStatus,
    },
};

#[derive(Debug)]
pub(crate) struct IbvQp {
    num: u32,
    caps: QpCaps,
    max_msg_sz: u64,
    me: Weak<IbvQp>,
    state: AtomicU8,
    /// Held while the state changes here and on the device.
    changing: Mutex<()>,
    drained: Mutex<bool>,
    /// True if the device did not stop.
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

impl IbvQp {
    pub(crate) fn new(
        pd: Arc<IbvPd>,
        send_cq: Arc<IbvCq>,
        recv_cq: Arc<IbvCq>,
        caps: QpCaps,
    ) -> Result<Arc<IbvQp>, VerbsError> {
        let core = Arc::clone(pd.core());
        checks::check_caps(caps, core.attr())?;
        let raw = RawQp::new(pd.raw(), send_cq.raw(), recv_cq.raw(), attributes::create(caps))
            .map_err(|e| VerbsError::os("ibv_create_qp", e))?;
        let (attr, which) = attributes::init(core.port().number);
        raw.modify(attr, which).map_err(|e| VerbsError::os("ibv_modify_qp to Init", e))?;
        let num = core.number();
        let send_ring = Arc::new(Ring::new(num, false, caps.max_send_wr));
        let recv_ring = Arc::new(Ring::new(num, true, caps.max_recv_wr));
        let mut full = false;
        let qp = Arc::new_cyclic(|me: &Weak<IbvQp>| {
            let mut enter = |cq: &IbvCq, ring: &Arc<Ring>| {
                let place = cq.enter(ring, me.clone());
                full |= place.is_none();
                // Generation 0 with the last index matches no entry of the table.
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
        qp.core.watch().add_qp(num, qp.raw.addr(), qp.me.clone());
        Ok(qp)
    }

    fn to_err_on_device(&self) {
        let (attr, which) = attributes::state(ibv_qp_state::IBV_QPS_ERR);
        if let Err(e) = self.raw.modify(attr, which) {
            log::error!("queue pair {}: ibv_modify_qp to Err: {e}", self.num);
        }
    }

    /// Moves from state `from` to `to`, here and on the device, unless the queue pair has failed.
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

    fn find_peer(&self, exchange: &mut Exchange, near: Option<std::net::IpAddr>) -> Result<(), VerbsError> {
        let port = self.core.port();
        let chosen = self.core.gid_index();
        let gid = select::gid(&port, chosen, near).map_err(VerbsError::NoPath)?;
        let max_rd_atomic = u8::try_from(self.core.attr().max_qp_rd_atom).unwrap_or(u8::MAX);
        let local = Local { port: &port, gid, gid_is_chosen: chosen.is_some(), max_rd_atomic };
        let mut random = [0; 4];
        getrandom::fill(&mut random)
            .map_err(|e| VerbsError::os("getrandom", std::io::Error::other(e.to_string())))?;
        let ours = Endpoint::new(&local, self.raw.number(), u32::from_ne_bytes(random));
        let theirs = exchange.swap_endpoints(&ours)?;
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
        let (attr, which) = attributes::receive(&path, port.number);
        self.step(QpState::Init, QpState::Rtr, attr, which, explain)?;
        let (attr, which) = attributes::send(&path);
        self.step(QpState::Rtr, QpState::Rts, attr, which, |e| VerbsError::os("ibv_modify_qp to Rts", e))?;
        // Neither side sends before both can receive.
        exchange.wait_ready()
    }

    /// Returns the status with which a request must fail that the device cannot receive unchanged.
    /// A device executes an atomic at the peer before it checks the local element. Some drivers
    /// refuse an unaligned atomic without a reason.
    fn local_error(&self, wr: &SendWr<'_>) -> Option<WcStatus> {
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

    /// Returns the result of a post from the device's result and the reason for a refusal.
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

impl WatchedQp for IbvQp {
    fn fail(&self, why: &str) {
        let _changing = self.changing.lock();
        if self.state.swap(QpState::Err as u8, Ordering::AcqRel) == QpState::Err as u8 {
            return;
        }
        log::debug!("queue pair {}: {why}", self.num);
        self.to_err_on_device();
        if let Some(stream) = self.stream.get() {
            self.core.watch().remove_stream(fd_of(stream));
            // The stream may already be shut down.
            let _ = sock(stream).shutdown(std::net::Shutdown::Both);
        }
    }
}

impl crate::verbs::Sealed for IbvQp {}

impl QueuePair for IbvQp {
    fn qp_num(&self) -> u32 {
        self.num
    }

    fn state(&self) -> QpState {
        QpState::of(self.state.load(Ordering::Acquire))
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
                // Each message is sent alone.
                let _ = stream.set_nodelay(true);
                stream.local_addr().ok().map(|addr| addr.ip())
            }
            Rendezvous::Tls(_) => {
                self.to_error();
                let why = "the peers connected over TLS, which cannot encrypt the data of an RDMA device";
                return Err(VerbsError::Protocol(why.into()));
            }
            Rendezvous::Unix(_) => None,
        };
        let mut exchange = Exchange::new(stream, Instant::now().checked_add(timeout));
        let connected = self.find_peer(&mut exchange, near).and_then(|()| {
            if self.stream.set(exchange.into_stream()).is_err() {
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
            // The queue pair failed before its stream was stored.
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
            refused = checks::refuse_send(&self.caps, self.max_msg_sz, room - index, wr);
            if refused.is_some() {
                break;
            }
            let sequence = first.wrapping_add(index);
            self.send_ring.record(sequence, wr.wr_id);
            let name = Name { place: self.send_place, is_marker: false, sequence }.encode();
            match self.local_error(wr) {
                None => sends.add(name, wr),
                Some(status) => {
                    self.send_ring.mark_invalid(sequence, status);
                    sends.add_invalid(name);
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
            refused = checks::refuse_recv(&self.caps, room - index, wr);
            if refused.is_some() {
                break;
            }
            let sequence = first.wrapping_add(index);
            self.recv_ring.record(sequence, wr.wr_id);
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
