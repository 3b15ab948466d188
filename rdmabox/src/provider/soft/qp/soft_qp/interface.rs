//! The verbs of a queue pair: connecting, posting, direct execution, mapping.
//!
//! # Concurrency
//! Any thread may call any method; `soft_qp` has the order of the locks.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{SoftQp, handshake::handshake};
use crate::{
    mapping::Memory,
    provider::soft::{
        memory::Refused,
        qp::{
            link::HANDLE_WAIT,
            request::{Posted, PostedRecv},
        },
    },
    verbs::{
        Access, DirectOp, PostError, PostErrorReason, QpCaps, QpState, QueuePair, RecvWr, RemoteAddr,
        Rendezvous, SendWr, VerbsError, WcStatus,
    },
};

/// Maximum number of reads of data that the peer sent before it disconnected.
const MAX_FINAL_READS: usize = 64;

impl crate::verbs::Sealed for SoftQp {}

impl QueuePair for SoftQp {
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
        let (init, rtr) = (QpState::Init as u8, QpState::Rtr as u8);
        if self.state.compare_exchange(init, rtr, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(VerbsError::State { is: self.state(), needs: QpState::Init });
        }
        let link = match handshake(self.num, self.maps, &self.pd, stream, timeout) {
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
            // The queue pair failed before it joined the sets, so no other thread removes it.
            self.leave_sets();
            return Err(VerbsError::PeerGone);
        }
        if shares {
            self.pd.share_with(&self.me);
        }
        self.update_interest();
        if let Some(link) = self.link.get() {
            // Handles bytes that arrived with the last bytes of the handshake.
            self.request_poll(link, false);
        }
        Ok(())
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let Posted { count: posted, refused, framed, failed } = self.post_list(list);
        if framed && let Some(link) = self.link.get() {
            if !self.send_pending(link) {
                // Reads the data that the peer sent before it disconnected, then fails.
                link.socket.shutdown();
                let mut rx = self.rx.lock();
                for _ in 0..MAX_FINAL_READS {
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
            // A message was waiting for this receive. A thread that holds the lock may have checked
            // before the receive was posted.
            let mut rx = self.rx.lock();
            rx.pump(self, link);
            let holds_input = rx.holds_input();
            drop(rx);
            self.update_interest();
            self.request_poll(link, holds_input);
        }
        result
    }

    fn to_error(&self) {
        self.enter_error(&mut self.rx.lock(), WcStatus::WrFlushErr, false);
    }

    fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire) >= self.fences.load(Ordering::Acquire)
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

    /// Returns false. The posting thread copies mapped memory, or writes to a socket. More sockets
    /// would cost the same writes, and the peer more reads.
    fn works_beside_others(&self) -> bool {
        false
    }

    fn map_remote(&self, remote: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)> {
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
                // The region exists, so the handle of its memory must be in transit.
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
