//! Reliable connected queue pairs of the software device.
//!
//! # Concurrency
//! Any thread may call any method. Lock order: `rx`, `sq`, `tx`; `rq`, `interest` and the peer's
//! memory are leaves. A post holds `sq` while it queues frames, so that frames are in the order
//! of the send queue, and `tx` while it sends. Requests hold the peer's memory shared while they
//! execute. Arriving handles and the end of the queue pair hold it exclusively, under `rx`.

mod handshake;
mod interface;

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::{
    link::Link,
    pd::SoftPd,
    request::PostedRecv,
    rx_state::{Rx, TakenRecv},
    send_queue::{LockedSendQueue, SendQueue},
    tx::Tx,
};
use crate::{
    provider::soft::{
        completion::{Interest, Member, PollSet, SoftCq},
        limits::MAX_QP_WR,
        memory::{Region, Regions},
        stream::ConnectedProcess,
        wire::{Header, NO_MEMORY, Opcode},
    },
    verbs::{QpCaps, QpState, QueuePair, WcOpcode, WcStatus, WorkCompletion},
};

/// Returns the maximum number of answers that may wait for the socket before the queue pair stops
/// taking requests. `own` is the maximum number of its own outstanding requests.
///
/// At least one of two sides must keep reading, or both would wait forever. A side with few own
/// requests may stop early: its peer owes it few answers, below the peer's limit, and keeps
/// reading. So a peer that reads nothing costs a host little memory.
pub(crate) fn max_answers(own: u32) -> usize {
    match own {
        ..=1 => 128,
        2..=256 => 256 + 64,
        _ => MAX_QP_WR as usize + 64,
    }
}

#[derive(Debug)]
pub(crate) struct SoftQp {
    num: u32,
    caps: QpCaps,
    /// True if this side maps the peer's memory.
    maps: bool,
    me: Weak<SoftQp>,
    pd: Arc<SoftPd>,
    recv_cq: Arc<SoftCq<SoftQp>>,
    /// Poll sets that wait for the socket.
    sets: SmallVec<[Arc<PollSet<SoftQp>>; 2]>,
    state: AtomicU8,
    link: OnceLock<Link>,
    rx: Mutex<Rx>,
    sq: Mutex<SendQueue<SoftQp>>,
    /// True if every posted request was complete when `sq` was last unlocked. The current owner of
    /// `sq` may be changing that.
    idle: AtomicBool,
    tx: Mutex<Tx>,
    rq: Mutex<VecDeque<PostedRecv>>,
    interest: Mutex<Interest>,
    /// True if a message waits for a receive. Changes under `rq`.
    rnr: AtomicBool,
    /// True if requests wait until the socket has taken earlier answers.
    throttled: AtomicBool,
    /// True if the socket did not take all output.
    tx_waits: AtomicBool,
    /// Number of fences sent to the peer. Changes under `tx`.
    fences: AtomicU64,
    /// Number of fences that the peer has confirmed. Changes under `rx`.
    fenced: AtomicU64,
}

pub(crate) struct SoftQpInit {
    pub num: u32,
    pub caps: QpCaps,
    pub pd: Arc<SoftPd>,
    pub send_cq: Arc<SoftCq<SoftQp>>,
    pub recv_cq: Arc<SoftCq<SoftQp>>,
    pub sets: SmallVec<[Arc<PollSet<SoftQp>>; 2]>,
    pub maps: bool,
}

impl SoftQp {
    pub(crate) fn new(init: SoftQpInit) -> Arc<SoftQp> {
        Arc::new_cyclic(|me| SoftQp {
            num: init.num,
            caps: init.caps,
            maps: init.maps,
            me: me.clone(),
            pd: init.pd,
            recv_cq: init.recv_cq,
            sets: init.sets,
            state: AtomicU8::new(QpState::Init as u8),
            link: OnceLock::new(),
            rx: Mutex::new(Rx::new()),
            sq: Mutex::new(SendQueue::new(init.num, init.send_cq, init.caps.max_send_wr)),
            idle: AtomicBool::new(true),
            tx: Mutex::default(),
            rq: Mutex::default(),
            interest: Mutex::new(Interest { read: true, write: false }),
            rnr: AtomicBool::new(false),
            throttled: AtomicBool::new(false),
            tx_waits: AtomicBool::new(false),
            fences: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.num
    }

    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    pub(crate) fn sq(&self) -> LockedSendQueue<'_, SoftQp> {
        LockedSendQueue::new(self.sq.lock(), &self.idle)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    pub(crate) fn tx(&self) -> MutexGuard<'_, Tx> {
        self.tx.lock()
    }

    pub(crate) fn regions(&self) -> &Regions {
        self.pd.regions()
    }

    /// Moves the bytes that can move without waiting. Returns true if any byte moved.
    pub(crate) fn progress(&self) -> bool {
        let Some(link) = self.link.get() else { return false };
        // A thread that holds the lock makes the progress instead.
        let Some(mut rx) = self.rx.try_lock() else { return false };
        if self.tx_waits.load(Ordering::Acquire) {
            self.flush_tx();
        }
        let moved = rx.pump(self, link);
        let holds_input = rx.holds_input();
        drop(rx);
        self.request_poll(link, holds_input);
        moved
    }

    /// Makes the poll sets check this queue pair again if it holds input that epoll does not
    /// report. The caller has released `rx`, because a thread that found `rx` locked relies on this
    /// check.
    fn request_poll(&self, link: &Link, holds_input: bool) {
        if (holds_input || link.socket.holds_input()) && !self.must_wait() {
            self.sets.iter().for_each(|set| set.request_poll(self.num));
        }
    }

    /// Sends pending output and updates the events that the poll sets watch. The next reader
    /// detects a broken connection.
    pub(crate) fn flush_tx(&self) {
        let Some(link) = self.link.get() else { return };
        if !self.send_pending(link) {
            // Data that the peer sent before it disconnected can still be read, followed by the end
            // of the stream.
            link.socket.shutdown();
        }
        self.update_interest();
    }

    /// Sends pending output. Returns false if the connection is broken.
    fn send_pending(&self, link: &Link) -> bool {
        let mut tx = self.tx.lock();
        if tx.is_empty() && !link.socket.holds_output() {
            self.tx_waits.store(false, Ordering::Release);
            return true;
        }
        match tx.flush(&link.socket) {
            Ok(done) => {
                // `throttled` changes before `tx_waits`, so that a reader between the two still
                // sees a reason to wait.
                if tx.answers() < max_answers(self.caps.max_send_wr) / 2 {
                    self.throttled.store(false, Ordering::Release);
                }
                self.tx_waits.store(!done, Ordering::Release);
                true
            }
            Err(e) => {
                log::debug!("queue pair {}: send: {e}", self.num);
                tx.close();
                self.tx_waits.store(false, Ordering::Release);
                self.throttled.store(false, Ordering::Release);
                false
            }
        }
    }

    /// Handles a disconnect of the peer. Data that it sent is read as usual. A request that waits
    /// for a receive or for output fails, because it can never proceed.
    pub(crate) fn hung_up(&self) {
        let Some(mut rx) = self.rx.try_lock() else { return };
        if rx.is_waiting() {
            self.enter_error(&mut rx, WcStatus::RetryExcErr, false);
        }
    }

    /// Returns true if the socket did not take all output.
    pub(crate) fn tx_waits(&self) -> bool {
        self.tx_waits.load(Ordering::Acquire)
    }

    /// Returns true while the queue pair takes no further requests.
    pub(crate) fn must_wait(&self) -> bool {
        self.rnr.load(Ordering::Acquire) || self.throttled.load(Ordering::Acquire)
    }

    /// Returns true if the payloads of own requests up to `msn` have been sent. An earlier answer
    /// is invalid, and accepting it would free memory that is still to be sent. The caller holds
    /// the send queue's lock.
    pub(crate) fn was_sent(&self, msn: u32) -> bool {
        let tx = self.tx.lock();
        tx.first_unsent().is_none_or(|first| msn.wrapping_sub(first) >= 1 << 31)
    }

    /// Returns true if too many answers wait for the socket, and then stops taking requests.
    pub(crate) fn must_wait_for_tx(&self) -> bool {
        let wait = self.tx.lock().answers() >= max_answers(self.caps.max_send_wr);
        if wait {
            self.throttled.store(true, Ordering::Release);
            self.tx_waits.store(true, Ordering::Release);
        }
        wait
    }

    pub(crate) fn update_interest(&self) {
        let Some(link) = self.link.get() else { return };
        let mut current = self.interest.lock();
        // Read under the lock, so that the last caller applies the current state.
        let wanted = Interest { read: !self.must_wait(), write: self.tx_waits() };
        if *current != wanted {
            *current = wanted;
            for set in &self.sets {
                set.set_interest(self.num, link.socket.raw_fd(), wanted);
            }
        }
    }

    pub(crate) fn leave_sets(&self) {
        if let Some(link) = self.link.get() {
            for set in &self.sets {
                set.remove(self.num, link.socket.raw_fd());
            }
        }
    }

    /// Takes the next posted receive. Without one, the queue pair waits for the next post.
    pub(crate) fn take_recv(&self) -> Option<PostedRecv> {
        let mut rq = self.rq.lock();
        let recv = rq.pop_front();
        self.rnr.store(recv.is_none(), Ordering::Release);
        recv
    }

    pub(crate) fn complete_recv(&self, recv: TakenRecv, status: WcStatus) {
        self.recv_cq.push_recv(WorkCompletion {
            wr_id: recv.wr_id,
            status,
            opcode: recv.opcode,
            byte_len: recv.byte_len,
            imm: recv.imm,
            qp_num: self.num,
        });
    }

    /// Refuses a request of the peer: sends `nak` and moves to Err.
    pub(crate) fn refuse(&self, rx: &mut Rx, nak: &Header) {
        {
            let mut tx = self.tx.lock();
            tx.header(nak);
        }
        if let Some(link) = self.link.get() {
            self.send_pending(link);
        }
        self.enter_error(rx, WcStatus::WrFlushErr, true);
    }

    /// Moves to Err. The first outstanding send request completes with `first`, and every other
    /// request is flushed. Local memory is no longer accessed afterwards. With `drain` the
    /// connection stays readable, so that the peer receives the last output.
    pub(crate) fn enter_error(&self, rx: &mut Rx, first: WcStatus, drain: bool) {
        if self.state.swap(QpState::Err as u8, Ordering::AcqRel) == QpState::Err as u8 {
            return;
        }
        let peer = self.link.get().and_then(|link| link.peer.as_ref());
        if let Some(peer) = peer {
            peer.await_executions();
        }
        let taken = rx.close(drain);
        // Before any completion, because memory must not be sent after its owner got it back.
        self.tx.lock().close();
        self.sq().fail(first);
        if let Some(peer) = peer {
            // After `sq`: a poster holds the send queue from its check of the state to the end of
            // the execution.
            peer.drop_tether();
        }
        if let Some(recv) = taken {
            self.complete_recv(recv, WcStatus::WrFlushErr);
        }
        let flushed: Vec<u64> = self.rq.lock().drain(..).map(|recv| recv.wr_id).collect();
        for wr_id in flushed {
            self.flush_recv(wr_id);
        }
        if let Some(link) = self.link.get() {
            if drain {
                link.socket.shutdown_write();
            } else {
                link.socket.shutdown();
                self.leave_sets();
            }
        }
    }

    fn flush_recv(&self, wr_id: u64) {
        let taken = TakenRecv { wr_id, byte_len: 0, imm: None, opcode: WcOpcode::Recv };
        self.complete_recv(taken, WcStatus::WrFlushErr);
    }

    /// Returns the process that connected, if the kernel can name it here.
    pub(crate) fn connected_process(&self) -> Option<ConnectedProcess> {
        self.link.get()?.socket.connected_process()
    }

    /// Sends a descriptor to the peer, with the frame that describes it.
    pub(crate) fn send_descriptor(&self, header: &Header, fd: std::os::fd::OwnedFd) {
        let Some(link) = self.link.get() else { return };
        {
            let mut tx = self.tx.lock();
            tx.descriptor(fd);
            tx.header(header);
        }
        self.send_pending(link);
        self.update_interest();
    }

    /// Asks the peer to finish its executions on mapped memory, and to remove the memory `id`.
    pub(crate) fn fence(&self, id: Option<u64>) {
        let Some(link) = self.link.get() else { return };
        let mut header = Header::new(Opcode::Fence, 0);
        header.arg1 = id.unwrap_or(NO_MEMORY).into();
        {
            let mut tx = self.tx.lock();
            // Counted before the peer can answer.
            self.fences.fetch_add(1, Ordering::AcqRel);
            tx.header(&header);
        }
        self.send_pending(link);
        self.update_interest();
    }

    /// Counts a confirmation of the peer. Returns false if no fence is unconfirmed.
    pub(crate) fn confirm_fence(&self) -> bool {
        let unconfirmed = self.fenced.load(Ordering::Acquire) < self.fences.load(Ordering::Acquire);
        if unconfirmed {
            self.fenced.fetch_add(1, Ordering::AcqRel);
        }
        unconfirmed
    }

    /// Moves to Err if a request of the peer is moving bytes of this region. No request finds the
    /// region any more.
    pub(crate) fn end_use_of(&self, region: &Arc<Region>) {
        let mut rx = self.rx.lock();
        let uses = rx.uses(region) || self.tx.lock().uses(region);
        if uses {
            log::info!("queue pair {}: a request under way used withdrawn memory", self.num);
            self.enter_error(&mut rx, WcStatus::WrFlushErr, false);
        }
    }
}

impl Member for SoftQp {
    #[inline]
    fn progress(&self) -> bool {
        SoftQp::progress(self)
    }

    #[inline]
    fn must_wait(&self) -> bool {
        SoftQp::must_wait(self)
    }

    fn hung_up(&self) {
        SoftQp::hung_up(self);
    }

    fn fail(&self) {
        self.to_error();
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        self.leave_sets();
        if let Some(link) = self.link.get() {
            link.socket.shutdown();
        }
    }
}
