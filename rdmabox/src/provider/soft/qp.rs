//! Reliable connected queue pairs in software.
//!
//! Locks, in the order in which they may be taken: `rx`, `sq`, `tx`; `rq`, `interest` and the peer's memory are leaves. A
//! post holds `sq` while it queues frames, so that the wire has the order of the send queue, and `tx` while it sends.
//! The peer's memory is locked for reading while requests are executed on it, and for writing, with `rx`, by handles that
//! arrive and by the end of the queue pair.

use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
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
    cq::SoftCq,
    device::{MAX_QP_WR, SoftPd},
    direct::{PeerMemory, Refused},
    poll_set::{Interest, PollSet},
    post::{HANDLE_WAIT, Posted},
    regions::Regions,
    requester::SendQueue,
    responder::PostedRecv,
    rx::{Rx, TakenRecv},
    socket::Socket,
    tx::Tx,
    wire::{Header, Hello, MAGIC, VERSION},
};
use crate::verbs::{
    Access, DirectOp, PostError, PostErrorReason, QpCaps, QpState, QueuePair, RecvWr, RemoteAddr, Rendezvous,
    SendWr, VerbsError, WcOpcode, WcStatus, WorkCompletion,
};

/// Rounds of reading what a peer said before it went.
const LAST_WORDS: usize = 64;
/// Returns the number of answers that may wait for the socket before no more requests are taken, at a side that has `own` requests under
/// way at most.
///
/// Of two sides at least one has to read, or both would wait for ever. A side with few requests of its own may stop early: its
/// peer has few answers for it, fewer than that one's limit, and goes on reading. So a peer that reads nothing costs a host little.
pub(super) fn max_answers(own: u32) -> usize {
    match own {
        ..=1 => 128,
        2..=256 => 256 + 64,
        _ => MAX_QP_WR as usize + 64,
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub socket: Socket,
    /// The peer's memory, inside a host, if it is wanted.
    pub peer: Option<PeerMemory>,
    /// Inside a host the two sides hand each other their memory, whoever wants it.
    pub shares: bool,
}

/// The send queue, for the time of the lock.
pub(crate) struct LockedSendQueue<'a> {
    queue: MutexGuard<'a, SendQueue>,
    idle: &'a AtomicBool,
}

impl Deref for LockedSendQueue<'_> {
    type Target = SendQueue;

    fn deref(&self) -> &SendQueue {
        &self.queue
    }
}

impl DerefMut for LockedSendQueue<'_> {
    fn deref_mut(&mut self) -> &mut SendQueue {
        &mut self.queue
    }
}

impl Drop for LockedSendQueue<'_> {
    fn drop(&mut self) {
        // Still locked: what is true now, before anybody can see that a request is done.
        let idle = self.queue.is_idle();
        if self.idle.load(Ordering::Relaxed) != idle {
            self.idle.store(idle, Ordering::Release);
        }
    }
}

#[derive(Debug)]
pub(crate) struct SoftQp {
    num: u32,
    caps: QpCaps,
    /// The peer's memory is wanted.
    maps: bool,
    me: Weak<SoftQp>,
    pd: Arc<SoftPd>,
    recv_cq: Arc<SoftCq>,
    /// Where its socket is waited for.
    sets: SmallVec<[Arc<PollSet>; 2]>,
    state: AtomicU8,
    link: OnceLock<Link>,
    rx: Mutex<Rx>,
    sq: Mutex<SendQueue>,
    /// Every request that was posted is done. As `sq` was left; its next owner may be changing that.
    idle: AtomicBool,
    tx: Mutex<Tx>,
    rq: Mutex<VecDeque<PostedRecv>>,
    interest: Mutex<Interest>,
    /// A message waits for a receive. Changed under `rq`.
    rnr: AtomicBool,
    /// Requests wait for the socket to take the answers of earlier ones.
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
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.num
    }

    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    pub(crate) fn sq(&self) -> LockedSendQueue<'_> {
        LockedSendQueue { queue: self.sq.lock(), idle: &self.idle }
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

    /// Moves what can be moved without waiting. True if any byte moved.
    pub(crate) fn progress(&self) -> bool {
        let Some(link) = self.link.get() else { return false };
        // Another thread that holds the lock is making this progress.
        let Some(mut rx) = self.rx.try_lock() else { return false };
        if self.tx_waits.load(Ordering::Acquire) {
            self.flush_tx();
        }
        let moved = rx.pump(self, link);
        let holds_input = rx.holds_input();
        drop(rx);
        self.come_back(link, holds_input);
        moved
    }

    /// Has the sets look here again if there is something to act on that the system does not tell of. Called by whoever has read,
    /// when others can: who finds the lock taken before that leaves it to this.
    fn come_back(&self, link: &Link, holds_input: bool) {
        if (holds_input || link.socket.holds_input()) && !self.must_wait() {
            self.sets.iter().for_each(|set| set.look_again(self.num));
        }
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
        if tx.is_empty() && !link.socket.holds_output() {
            self.tx_waits.store(false, Ordering::Release);
            return true;
        }
        match tx.flush(&link.socket) {
            Ok(done) => {
                // Before the other: whoever looks between the two has to find that it waits for something.
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

    /// The peer has closed its side. What it had sent is read as usual; a request that cannot be acted on will never be.
    pub(crate) fn hung_up(&self) {
        let Some(mut rx) = self.rx.try_lock() else { return };
        if rx.is_waiting() {
            self.enter_error(&mut rx, WcStatus::RetryExcErr, false);
        }
    }

    /// True if the socket would not take everything.
    pub(crate) fn tx_waits(&self) -> bool {
        self.tx_waits.load(Ordering::Acquire)
    }

    /// True while no further request is acted on.
    pub(crate) fn must_wait(&self) -> bool {
        self.rnr.load(Ordering::Acquire) || self.throttled.load(Ordering::Acquire)
    }

    /// True if the payload of our request `msn`, and of those before it, has left: else an answer to it is a lie, and
    /// believing it would free memory that is still to be sent. Called with the send queue locked.
    pub(crate) fn was_sent(&self, msn: u32) -> bool {
        let tx = self.tx.lock();
        tx.first_unsent().is_none_or(|first| msn.wrapping_sub(first) >= 1 << 31)
    }

    /// Too many answers wait for the socket.
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
        // Read under the lock: whoever comes last applies what is true then.
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

    /// Takes the next posted receive; without one, the queue pair waits for the next post.
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
        let peer = self.link.get().and_then(|link| link.peer.as_ref());
        if let Some(peer) = peer {
            peer.await_executions();
        }
        let taken = rx.close(drain);
        // Before any completion: nothing may be sent from memory that its owner has back.
        self.tx.lock().close();
        self.sq().fail(first);
        if let Some(peer) = peer {
            // Not before: who posts has the send queue from his look at the state to the end of the execution.
            peer.let_go();
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

    /// Sends a descriptor to the peer, with the frame that says what it is.
    pub(crate) fn hand_over(&self, header: &Header, fd: std::os::fd::OwnedFd) {
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
        // Too far away to be told means no limit.
        let deadline = Instant::now().checked_add(timeout);
        // A side that maps nothing has no use for descriptors.
        let socket = Socket::new(stream, timeout, self.maps)?;
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
        socket.receive_exact(theirs.as_mut_bytes(), &mut fds, deadline)?;
        if theirs.magic != MAGIC {
            return Err(VerbsError::Protocol("no rdmabox queue pair at the other end".into()));
        }
        if theirs.version.get() != VERSION {
            let theirs = theirs.version.get();
            return Err(VerbsError::Protocol(format!("it has version {theirs}, this side has {VERSION}")));
        }
        let table = fds.pop().filter(|_| theirs.table_len.get() > 0);
        let shares = match self.maps {
            true => table.is_some(),
            false => socket.is_unix() && theirs.table_len.get() > 0,
        };
        let peer = match table.filter(|_| self.maps) {
            Some(fd) => {
                let len = usize::try_from(theirs.table_len.get())
                    .map_err(|_| VerbsError::Protocol("table too long".into()))?;
                Some(
                    PeerMemory::new(fd, len, self.pd.peer_mappings())
                        .map_err(|e| VerbsError::Protocol(e.to_string()))?,
                )
            }
            None => None,
        };
        Ok(Link { socket: socket.into_nonblocking()?, peer, shares })
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
        let (fd, shares) = (link.socket.raw_fd(), link.shares);
        if self.link.set(link).is_err() {
            return Err(VerbsError::State { is: self.state(), needs: QpState::Init });
        }
        let rts = QpState::Rts as u8;
        if self.state.compare_exchange(rtr, rts, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(VerbsError::State { is: self.state(), needs: QpState::Rtr });
        }
        for set in &self.sets {
            if let Err(e) = set.add(self.num, fd, self.me.clone()) {
                self.to_error();
                return Err(e);
            }
        }
        if self.state() == QpState::Err {
            // Broken before it was in the sets: nobody else takes it out.
            self.leave_sets();
            return Err(VerbsError::PeerGone);
        }
        if shares {
            self.pd.share_with(&self.me);
        }
        self.update_interest();
        if let Some(link) = self.link.get() {
            // What came with the last bytes of the handshake.
            self.come_back(link, false);
        }
        Ok(())
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let Posted { count: posted, refused, framed, failed } = self.post_list(list);
        if framed && let Some(link) = self.link.get() {
            if !self.send_pending(link) {
                // Read what the peer said before it went, then fail.
                link.socket.shutdown();
                let mut rx = self.rx.lock();
                for _ in 0..LAST_WORDS {
                    if !rx.pump(self, link) {
                        break;
                    }
                }
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
            let mut rx = self.rx.lock();
            rx.pump(self, link);
            let holds_input = rx.holds_input();
            drop(rx);
            self.update_interest();
            self.come_back(link, holds_input);
        }
        result
    }

    fn to_error(&self) {
        self.enter_error(&mut self.rx.lock(), WcStatus::WrFlushErr, false);
    }

    fn execute_now(&self, op: &mut DirectOp<'_>) -> Option<Result<(), WcStatus>> {
        let status = self.execute_direct(op)?;
        if status == WcStatus::Success {
            return Some(Ok(()));
        }
        self.to_error();
        Some(Err(status))
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
        let give_up = Instant::now() + HANDLE_WAIT;
        loop {
            let found =
                peer.execute().locate(remote, len, needs).map(|(memory, at)| (Arc::clone(memory), at));
            match found {
                Ok(found) => return Some(found),
                Err(Refused::Access) => return None,
                // The region is there, so that the handle of its memory must be on its way.
                Err(Refused::NotMapped) if Instant::now() > give_up => return None,
                Err(Refused::NotMapped) => {
                    if !self.progress() {
                        std::thread::yield_now();
                    }
                }
            }
        }
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
