//! The end of a queue pair: the device flushes posted requests, and later requests fail at once.
//!
//! A marker in each queue comes after every earlier request. When both markers have come, the
//! device has finished with the memory of all requests. A device that never flushes them is reset,
//! and the memory is leaked.
//!
//! # Concurrency
//! Any thread. Lock order: `drained`, `sends` or `recvs`, a completion queue's lock.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibverbs_sys::ibv_qp_state;

use super::{IbvQp, attributes, checks};
use crate::{
    provider::ibverbs::objects::{
        cq::IbvCq,
        ring::{Name, Place, Ring},
        status,
    },
    verbs::{PostError, RecvWr, SendWr},
};

/// Maximum time for a device to flush its queues. A working device needs microseconds.
const MAX_DRAIN: Duration = Duration::from_secs(5);
/// Number of polls of the completion queues before the draining thread sleeps between polls.
const MAX_BUSY_POLLS: u32 = 1000;

impl IbvQp {
    /// Blocks until the device has finished with every posted request. The state must be Err.
    pub(super) fn drain(&self) {
        let mut drained = self.drained.lock();
        if std::mem::replace(&mut *drained, true) {
            return;
        }
        self.post_markers();
        // Soft-RoCE flushes the receives of a queue pair in Err only after another transition.
        self.to_err_on_device();
        let start = Instant::now();
        let mut polls = 0u32;
        loop {
            for cq in [&self.send_cq, &self.recv_cq] {
                if let Err(e) = cq.stash_all() {
                    log::error!("queue pair {}: {e}", self.num);
                }
            }
            if self.send_ring.is_drained() && self.recv_ring.is_drained() {
                return;
            }
            polls = polls.saturating_add(1);
            if polls < MAX_BUSY_POLLS {
                std::thread::yield_now();
            } else if start.elapsed() < MAX_DRAIN {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                break;
            }
        }
        log::error!(
            "queue pair {}: the device did not flush it; it is reset, and its memory is leaked",
            self.num
        );
        self.is_stuck.store(true, Ordering::Release);
        self.pd.set_stuck();
        let (attr, which) = attributes::state(ibv_qp_state::IBV_QPS_RESET);
        if let Err(e) = self.raw.modify(attr, which) {
            log::error!("queue pair {}: ibv_modify_qp to Reset: {e}", self.num);
        }
    }

    fn post_markers(&self) {
        let marker = |place, ring: &Ring| Name { place, is_marker: true, sequence: ring.next() }.encode();
        if self.send_ring.is_fresh() {
            self.send_ring.set_drained();
        } else {
            let mut sends = self.sends.lock();
            sends.clear();
            sends.add_marker(marker(self.send_place, &self.send_ring));
            if let Some(e) = sends.post(&self.raw).error {
                log::error!("queue pair {}: posting the send marker failed: {e}", self.num);
            }
        }
        if self.recv_ring.is_fresh() {
            self.recv_ring.set_drained();
        } else {
            let mut recvs = self.recvs.lock();
            recvs.clear();
            recvs.add(marker(self.recv_place, &self.recv_ring), &RecvWr { wr_id: 0, sges: &[] });
            if let Some(e) = recvs.post(&self.raw).error {
                log::error!("queue pair {}: posting the receive marker failed: {e}", self.num);
            }
        }
    }

    /// Completes sends as flushed, in state Err.
    pub(super) fn flush_sends(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        self.drain();
        let _sends = self.sends.lock();
        for (posted, wr) in list.iter().enumerate() {
            if let Some(reason) = checks::refuse_send(&self.caps, self.max_msg_sz, self.send_ring.room(), wr)
            {
                return Err(PostError { posted, reason });
            }
            flush(&self.send_cq, self.send_place, &self.send_ring, wr.wr_id);
        }
        Ok(())
    }

    /// Completes receives as flushed, in state Err.
    pub(super) fn flush_recvs(&self, list: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.drain();
        let _recvs = self.recvs.lock();
        for (posted, wr) in list.iter().enumerate() {
            if let Some(reason) = checks::refuse_recv(&self.caps, self.recv_ring.room(), wr) {
                return Err(PostError { posted, reason });
            }
            flush(&self.recv_cq, self.recv_place, &self.recv_ring, wr.wr_id);
        }
        Ok(())
    }
}

/// Reports a request that the device never receives as flushed.
fn flush(cq: &IbvCq, place: Place, ring: &Ring, wr_id: u64) {
    let sequence = ring.next();
    ring.record(sequence, wr_id);
    ring.advance(1);
    cq.push(Name { place, is_marker: false, sequence }, status::flushed(wr_id, ring.is_recv, ring.qp_num));
}
