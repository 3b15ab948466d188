//! Reliable connected queue pairs in software.
//!
//! Locks, in the order in which they may be taken: `rx`, `sq`, `tx`; `rq` and `interest` are leaves. A post holds
//! `sq` while it queues frames, so that the wire has the order of the send queue, and `tx` while it sends.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use zerocopy::{FromZeros, IntoBytes};

use super::{
    cq::{Cqe, SendSlots, SoftCq},
    device::{MAX_MESSAGE, SoftPd},
    direct::{self, Atomic, PeerMemory, Refused},
    poll_set::{Interest, PollSet},
    regions::Regions,
    requester::{Entry, Pieces, SendQueue},
    responder::PostedRecv,
    rx::{Rx, TakenRecv},
    socket::Socket,
    tx::Tx,
    wire::{FLAG_ACK, FLAG_IMM, FLAG_PLACED, Header, Hello, MAGIC, Opcode, VERSION},
};
use crate::verbs::{
    Access, PostError, PostErrorReason, QpCaps, QpState, QueuePair, RecvWr, RemoteAddr, Rendezvous,
    SendFlags, SendOp, SendWr, VerbsError, WcOpcode, WcStatus, WorkCompletion,
};

/// Answers that may wait for the socket before no more READs are taken.
const MAX_BACKLOG: usize = 16 << 20;
/// How long a post waits for a memory handle that must be on its way.
const HANDLE_WAIT: Duration = Duration::from_secs(2);

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub socket: Socket,
    /// The peer's memory, inside a host.
    pub peer: Option<PeerMemory>,
}

#[derive(Debug)]
pub(crate) struct SoftQp {
    num: u32,
    caps: QpCaps,
    me: Weak<SoftQp>,
    pd: Arc<SoftPd>,
    recv_cq: Arc<SoftCq>,
    slots: Arc<SendSlots>,
    /// Where its socket is waited for.
    sets: SmallVec<[Arc<PollSet>; 2]>,
    state: AtomicU8,
    link: OnceLock<Link>,
    rx: Mutex<Rx>,
    sq: Mutex<SendQueue>,
    tx: Mutex<Tx>,
    rq: Mutex<VecDeque<PostedRecv>>,
    interest: Mutex<Interest>,
    /// A message waits for a receive. Changed under `rq`.
    rnr: AtomicBool,
    /// READs wait for the socket to take the answers of earlier ones.
    throttled: AtomicBool,
    /// The socket would not take everything.
    tx_waits: AtomicBool,
}

pub(crate) struct SoftQpInit {
    pub num: u32,
    pub caps: QpCaps,
    pub pd: Arc<SoftPd>,
    pub send_cq: Arc<SoftCq>,
    pub recv_cq: Arc<SoftCq>,
    pub sets: SmallVec<[Arc<PollSet>; 2]>,
}

impl SoftQp {
    pub(crate) fn new(init: SoftQpInit) -> Arc<SoftQp> {
        let slots = Arc::new(SendSlots::default());
        Arc::new_cyclic(|me| SoftQp {
            num: init.num,
            caps: init.caps,
            me: me.clone(),
            pd: init.pd,
            recv_cq: init.recv_cq,
            slots: Arc::clone(&slots),
            sets: init.sets,
            state: AtomicU8::new(QpState::Init as u8),
            link: OnceLock::new(),
            rx: Mutex::new(Rx::new()),
            sq: Mutex::new(SendQueue::new(init.num, init.send_cq, slots, init.caps.max_send_wr)),
            tx: Mutex::default(),
            rq: Mutex::default(),
            interest: Mutex::new(Interest { read: true, write: false }),
            rnr: AtomicBool::new(false),
            throttled: AtomicBool::new(false),
            tx_waits: AtomicBool::new(false),
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.num
    }

    pub(crate) fn sq(&self) -> MutexGuard<'_, SendQueue> {
        self.sq.lock()
    }

    pub(crate) fn tx(&self) -> MutexGuard<'_, Tx> {
        self.tx.lock()
    }

    pub(crate) fn regions(&self) -> &Regions {
        self.pd.regions()
    }

    /// Moves what can be moved without waiting. True if any byte moved.
    pub(crate) fn progress(&self) -> bool {
        let Some(link) = self.link.get() else { return false };
        // Another thread that holds the lock is making this progress.
        let Some(mut rx) = self.rx.try_lock() else { return false };
        if self.tx_waits.load(Ordering::Acquire) {
            self.flush_tx();
        }
        rx.pump(self, link)
    }

    /// Sends what waits, and adjusts what the sockets are watched for. The end of a broken connection is seen by
    /// whoever reads next.
    pub(crate) fn flush_tx(&self) {
        let Some(link) = self.link.get() else { return };
        if !self.send_pending(link) {
            // What the peer sent before it went can still be read; the end of the stream follows.
            link.socket.shutdown();
        }
        self.update_interest();
    }

    /// Sends what waits; false if the connection is broken.
    fn send_pending(&self, link: &Link) -> bool {
        let mut tx = self.tx.lock();
        if tx.is_empty() {
            self.tx_waits.store(false, Ordering::Release);
            return true;
        }
        match tx.flush(&link.socket) {
            Ok(done) => {
                self.tx_waits.store(!done, Ordering::Release);
                if tx.backlog() < MAX_BACKLOG / 2 {
                    self.throttled.store(false, Ordering::Release);
                }
                true
            }
            Err(e) => {
                log::debug!("queue pair {}: send: {e}", self.num);
                tx.close();
                self.tx_waits.store(false, Ordering::Release);
                false
            }
        }
    }

    /// Too many answers wait for the socket.
    pub(crate) fn must_wait_for_tx(&self) -> bool {
        let wait = self.tx.lock().backlog() >= MAX_BACKLOG;
        if wait {
            self.throttled.store(true, Ordering::Release);
            self.tx_waits.store(true, Ordering::Release);
        }
        wait
    }

    fn update_interest(&self) {
        let Some(link) = self.link.get() else { return };
        let mut current = self.interest.lock();
        // Read under the lock: whoever comes last applies what is true then.
        let wanted = Interest {
            read: !self.rnr.load(Ordering::Acquire) && !self.throttled.load(Ordering::Acquire),
            write: self.tx_waits.load(Ordering::Acquire),
        };
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

    /// Takes the next posted receive; without one, the queue pair waits for the next post.
    pub(crate) fn take_recv(&self) -> Option<PostedRecv> {
        let mut rq = self.rq.lock();
        let recv = rq.pop_front();
        self.rnr.store(recv.is_none(), Ordering::Release);
        recv
    }

    pub(crate) fn complete_recv(&self, recv: TakenRecv, status: WcStatus) {
        self.recv_cq.push(Cqe {
            wc: WorkCompletion {
                wr_id: recv.wr_id,
                status,
                opcode: recv.opcode,
                byte_len: recv.byte_len,
                imm: recv.imm,
                qp_num: self.num,
            },
            frees: None,
        });
    }

    /// Refuses a request of the peer: says so, and goes to Err.
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

    /// Goes to Err: the first outstanding send request completes with `first`, everything else is flushed, and no
    /// local memory is touched any more. With `drain` the connection stays readable, so that the peer gets what
    /// was sent last.
    pub(crate) fn enter_error(&self, rx: &mut Rx, first: WcStatus, drain: bool) {
        if self.state.swap(QpState::Err as u8, Ordering::AcqRel) == QpState::Err as u8 {
            return;
        }
        let taken = rx.close(drain);
        self.sq.lock().fail(first);
        self.tx.lock().close();
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

    /// Sends a memory handle to the peer; for memory that is registered after the connection was made.
    pub(crate) fn announce_memory(&self, header: &Header, fd: std::os::fd::OwnedFd) {
        let Some(link) = self.link.get() else { return };
        {
            let mut tx = self.tx.lock();
            tx.descriptor(fd);
            tx.header(header);
        }
        self.send_pending(link);
        self.update_interest();
    }

    fn handshake(&self, stream: Rendezvous, timeout: Duration) -> Result<Link, VerbsError> {
        let socket = Socket::new(stream, timeout)?;
        let table = self.pd.table_for_peer(socket.is_unix())?;
        let hello = Hello {
            magic: MAGIC,
            version: VERSION.into(),
            qp_num: self.num.into(),
            table_len: table.as_ref().map_or(0, |(_, len)| *len as u64).into(),
        };
        socket.send_all(hello.as_bytes(), table.as_ref().map(|(fd, _)| std::os::fd::AsFd::as_fd(fd)))?;
        let mut theirs = Hello::new_zeroed();
        let mut fds = Vec::new();
        socket.receive_exact(theirs.as_mut_bytes(), &mut fds)?;
        if theirs.magic != MAGIC {
            return Err(VerbsError::Protocol("no rdmabox queue pair at the other end".into()));
        }
        if theirs.version.get() != VERSION {
            let theirs = theirs.version.get();
            return Err(VerbsError::Protocol(format!("it has version {theirs}, this side has {VERSION}")));
        }
        let peer = match (fds.pop(), theirs.table_len.get()) {
            (Some(fd), len) if len > 0 => {
                let len = usize::try_from(len).map_err(|_| VerbsError::Protocol("table too long".into()))?;
                Some(PeerMemory::new(fd, len).map_err(|e| VerbsError::Protocol(e.to_string()))?)
            }
            _ => None,
        };
        Ok(Link { socket: socket.into_nonblocking()?, peer })
    }

    /// Executes or queues one request whose shape has been checked. `Err` asks to try again when the handle of the
    /// peer's memory has arrived.
    fn start(&self, link: &Link, sq: &mut SendQueue, wr: &SendWr<'_>) -> Result<bool, Refused> {
        let opcode = opcode_of(&wr.op);
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        let entry = |msn, landing, done| Entry {
            wr_id: wr.wr_id,
            msn,
            opcode,
            signaled,
            byte_len: wr.byte_len() as u32,
            landing,
            done,
        };
        let needs = match wr.op {
            SendOp::Send { .. } | SendOp::Write { .. } => Access::empty(),
            _ => Access::LOCAL_WRITE,
        };
        let mut pieces = Pieces::new();
        for sge in wr.sges {
            match self.regions().local(sge, needs) {
                Some(piece) => pieces.push(piece),
                None => {
                    self.slots.take_one();
                    return Ok(sq.push(entry(0, Pieces::new(), Some(WcStatus::LocProtErr))));
                }
            }
        }
        if let Some(peer) = &link.peer
            && !matches!(wr.op, SendOp::Send { .. })
        {
            let status = match execute(peer, wr, &pieces) {
                Ok(()) => WcStatus::Success,
                Err(Failed::Status(status)) => status,
                Err(Failed::NotMapped) => return Err(Refused::NotMapped),
            };
            self.slots.take_one();
            if let (SendOp::Write { imm: Some(imm), .. }, WcStatus::Success) = (wr.op, status) {
                // The bytes are in place; the peer still has to consume a receive.
                let msn = sq.take_msn();
                let mut header = Header::new(Opcode::Write, msn);
                header.flags = FLAG_IMM | FLAG_PLACED | if signaled { FLAG_ACK } else { 0 };
                header.imm = imm.into();
                header.arg0 = wr.byte_len().into();
                self.tx.lock().header(&header);
                return Ok(sq.push(entry(msn, Pieces::new(), None)));
            }
            return Ok(sq.push(entry(0, Pieces::new(), Some(status))));
        }
        self.slots.take_one();
        let msn = sq.take_msn();
        let mut tx = self.tx.lock();
        let header = request_header(wr, msn);
        tx.header(&header);
        let landing = match wr.op {
            SendOp::Send { .. } | SendOp::Write { .. } => {
                match wr.inline {
                    Some(bytes) => tx.bytes(bytes),
                    None => pieces.drain(..).for_each(|piece| tx.memory(piece)),
                }
                Pieces::new()
            }
            _ => pieces,
        };
        // A READ of nothing has no landing, and is completed by its response all the same.
        Ok(sq.push(entry(msn, landing, None)))
    }

    fn post_list(&self, list: &[SendWr<'_>]) -> (usize, Option<PostErrorReason>, bool) {
        let mut failed = false;
        let mut index = 0;
        let mut give_up = None;
        while index < list.len() {
            let mut missing = false;
            {
                let mut sq = self.sq.lock();
                while index < list.len() {
                    let wr = &list[index];
                    let state = self.state();
                    if !matches!(state, QpState::Rts | QpState::Err) {
                        return (index, Some(PostErrorReason::State(state)), failed);
                    }
                    if let Some(reason) = self.refuses(wr) {
                        return (index, Some(reason), failed);
                    }
                    if state == QpState::Err || sq.is_poisoned() {
                        self.slots.take_one();
                        sq.flush_now(wr.wr_id, opcode_of(&wr.op));
                        index += 1;
                        continue;
                    }
                    // In Rts there is a link.
                    let Some(link) = self.link.get() else {
                        return (index, Some(PostErrorReason::State(state)), failed);
                    };
                    match self.start(link, &mut sq, wr) {
                        Ok(reported_failure) => failed |= reported_failure,
                        Err(_) => {
                            missing = true;
                            break;
                        }
                    }
                    index += 1;
                }
            }
            if missing {
                let deadline = *give_up.get_or_insert_with(|| Instant::now() + HANDLE_WAIT);
                if Instant::now() > deadline {
                    let mut sq = self.sq.lock();
                    self.slots.take_one();
                    let wr = &list[index];
                    failed |= sq.push(Entry {
                        wr_id: wr.wr_id,
                        msn: 0,
                        opcode: opcode_of(&wr.op),
                        signaled: true,
                        byte_len: 0,
                        landing: Pieces::new(),
                        done: Some(WcStatus::RemAccessErr),
                    });
                    index += 1;
                } else if !self.progress() {
                    std::thread::yield_now();
                }
            }
        }
        (index, None, failed)
    }

    /// What a device refuses at the post.
    fn refuses(&self, wr: &SendWr<'_>) -> Option<PostErrorReason> {
        if self.slots.in_use() >= self.caps.max_send_wr {
            return Some(PostErrorReason::QueueFull { depth: self.caps.max_send_wr });
        }
        let (asked, limit) = (wr.sges.len(), self.caps.max_send_sge);
        if asked > limit as usize {
            return Some(PostErrorReason::TooManySges { asked, limit });
        }
        let len = wr.byte_len();
        if len > MAX_MESSAGE {
            return Some(PostErrorReason::TooLong { asked: len, limit: MAX_MESSAGE });
        }
        let atomic = matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        if let Some(bytes) = wr.inline {
            let asked = bytes.len() as u64;
            let allowed = matches!(wr.op, SendOp::Send { .. } | SendOp::Write { .. }) && wr.sges.is_empty();
            let limit = if allowed { self.caps.max_inline_data } else { 0 };
            if !allowed || asked > u64::from(limit) {
                return Some(PostErrorReason::Inline { asked, limit });
            }
        }
        if atomic && (wr.sges.len() != 1 || len != 8) {
            return Some(PostErrorReason::AtomicShape);
        }
        None
    }
}

impl QueuePair for SoftQp {
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
        let (init, rtr) = (QpState::Init as u8, QpState::Rtr as u8);
        if self.state.compare_exchange(init, rtr, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(VerbsError::State { is: self.state(), needs: QpState::Init });
        }
        let link = match self.handshake(stream, timeout) {
            Ok(link) => link,
            Err(e) => {
                self.to_error();
                return Err(e);
            }
        };
        let (fd, mapped) = (link.socket.raw_fd(), link.peer.is_some());
        if self.link.set(link).is_err() {
            return Err(VerbsError::State { is: self.state(), needs: QpState::Init });
        }
        if mapped {
            self.pd.share_with(&self.me);
        }
        let rts = QpState::Rts as u8;
        if self.state.compare_exchange(rtr, rts, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(VerbsError::State { is: self.state(), needs: QpState::Rtr });
        }
        for set in &self.sets {
            set.add(self.num, fd, self.me.clone())?;
        }
        self.update_interest();
        Ok(())
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let (posted, refused, failed) = self.post_list(list);
        if let Some(link) = self.link.get() {
            if !self.tx.lock().is_empty() && !self.send_pending(link) {
                // Read what the peer said before it went, then fail.
                let mut rx = self.rx.lock();
                while rx.pump(self, link) {}
                self.enter_error(&mut rx, WcStatus::RetryExcErr, false);
            }
            if self.tx_waits.load(Ordering::Acquire) {
                self.update_interest();
            }
        }
        if failed {
            self.enter_error(&mut self.rx.lock(), WcStatus::WrFlushErr, false);
        }
        match refused {
            Some(reason) => Err(PostError { posted, reason }),
            None => Ok(()),
        }
    }

    fn post_recv(&self, list: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut waiting = false;
        let mut result = Ok(());
        for (posted, wr) in list.iter().enumerate() {
            let (asked, limit) = (wr.sges.len(), self.caps.max_recv_sge);
            if asked > limit as usize {
                let reason = PostErrorReason::TooManySges { asked, limit };
                result = Err(PostError { posted, reason });
                break;
            }
            let mut rq = self.rq.lock();
            match self.state() {
                QpState::Reset => {
                    result = Err(PostError { posted, reason: PostErrorReason::State(QpState::Reset) });
                    break;
                }
                QpState::Err => {
                    drop(rq);
                    self.flush_recv(wr.wr_id);
                    continue;
                }
                _ => {}
            }
            let depth = self.caps.max_recv_wr;
            if rq.len() >= depth as usize {
                result = Err(PostError { posted, reason: PostErrorReason::QueueFull { depth } });
                break;
            }
            rq.push_back(PostedRecv { wr_id: wr.wr_id, sges: SmallVec::from_slice(wr.sges) });
            waiting |= self.rnr.swap(false, Ordering::AcqRel);
        }
        if waiting && let Some(link) = self.link.get() {
            // A message was waiting for this. Whoever holds the lock may have looked before the receive was there.
            self.rx.lock().pump(self, link);
            self.update_interest();
        }
        result
    }

    fn to_error(&self) {
        self.enter_error(&mut self.rx.lock(), WcStatus::WrFlushErr, false);
    }

    fn executes_at_post(&self) -> bool {
        self.link.get().is_some_and(|link| link.peer.is_some())
    }

    fn map_remote(
        &self,
        remote: RemoteAddr,
        len: u64,
        needs: Access,
    ) -> Option<(Arc<crate::memory::Memory>, usize)> {
        if self.state() != QpState::Rts {
            return None;
        }
        let peer = self.link.get()?.peer.as_ref()?;
        peer.locate(remote, len, needs).ok()
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

fn opcode_of(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send { .. } => WcOpcode::Send,
        SendOp::Write { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
    }
}

fn request_header(wr: &SendWr<'_>, msn: u32) -> Header {
    let place = |header: &mut Header, remote: RemoteAddr| {
        header.rkey = remote.rkey.into();
        header.addr = remote.addr.into();
    };
    let len = (wr.byte_len() as u32).into();
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
    }
    if wr.flags.contains(SendFlags::SIGNALED) {
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

enum Failed {
    Status(WcStatus),
    NotMapped,
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Failed {
        match refused {
            Refused::Access => Failed::Status(WcStatus::RemAccessErr),
            Refused::NotMapped => Failed::NotMapped,
        }
    }
}

/// Runs a one-sided request on the peer's mapped memory.
fn execute(peer: &PeerMemory, wr: &SendWr<'_>, pieces: &[super::regions::Piece]) -> Result<(), Failed> {
    let len = wr.byte_len();
    match wr.op {
        SendOp::Write { remote, .. } => {
            if len == 0 {
                return Ok(());
            }
            let (memory, offset) = peer.locate(remote, len, Access::REMOTE_WRITE)?;
            match wr.inline {
                Some(bytes) => direct::write_inline(&memory, offset, bytes),
                None => direct::write(&memory, offset, pieces),
            }
        }
        SendOp::Read { remote } => {
            if len == 0 {
                return Ok(());
            }
            let (memory, offset) = peer.locate(remote, len, Access::REMOTE_READ)?;
            direct::read(&memory, offset, pieces);
        }
        SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
            if !remote.addr.is_multiple_of(8) {
                return Err(Failed::Status(WcStatus::RemInvReqErr));
            }
            let (memory, offset) = peer.locate(remote, 8, Access::REMOTE_ATOMIC)?;
            let op = match wr.op {
                SendOp::FetchAdd { add, .. } => Atomic::FetchAdd { add },
                SendOp::CompareSwap { compare, swap, .. } => Atomic::CompareSwap { compare, swap },
                _ => return Err(Failed::Status(WcStatus::LocQpOpErr)),
            };
            let old = direct::atomic(&memory, offset, op).map_err(Failed::Status)?;
            if let Some(piece) = pieces.first() {
                direct::store_old_value(piece, old);
            }
        }
        SendOp::Send { .. } => return Err(Failed::Status(WcStatus::LocQpOpErr)),
    }
    Ok(())
}
