//! Remote procedure calls over a queue pair of their own (SEND and RECV).
//!
//! A call takes one of [`CALL_SLOTS`] slots. Request and reply carry the slot in an 8-byte
//! header. Both sides post one receive per slot. A service may defer its reply. An ordinary call
//! then keeps its slot. A waiting call frees its slot, and gets its reply under a number on a
//! second queue pair ([`LateReplies`], [`WaitingCalls`]). A started call has no waiting thread
//! ([`StartedCalls`]). Calls may also go through memory that the client writes and reads
//! ([`fetch`]).
//!
//! # Concurrency
//! Each submodule documents its own threads and locks.

mod blocking_call;
mod client;
mod deferred_reply;
mod fetch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod header;
mod outbox;
mod pipelined_call;
mod poller_handoff;
mod reply;
mod server;

pub use blocking_call::Cancel;
pub(crate) use blocking_call::WaitingCalls;
pub(crate) use client::RpcClient;
pub(crate) use deferred_reply::LateReplies;
#[cfg(feature = "fuzzing")]
pub(crate) use fetch::MEMORY as CALL_MEMORY;
pub(crate) use fetch::{FetchClient, HostSlots, OneSided};
use pipelined_call::StartedCalls;
pub use pipelined_call::StartedReply;
pub use reply::{Later, Reply};
pub(crate) use server::{Handler, Reason, RpcServer};

use std::sync::Arc;

use header::{HEADER, Header, Kind};
use outbox::Outbox;

use crate::{
    memory::{Memory, MemoryError},
    verbs::{
        Access, MrHandle, PostError, ProtectionDomain, QueuePair, RecvWr, Sge, VerbsError, WcOpcode,
        WorkCompletion,
    },
};

/// Length limit of a request and of a reply, in bytes.
pub const MAX_CALL: usize = 64 * 1024;
/// Concurrent calls of a session. Further calls wait for a slot.
pub(crate) const CALL_SLOTS: usize = 16;
/// Distance between two signaled sends.
const SIGNAL_EVERY: u32 = 8;
/// Queue depths: one receive per slot, and as many sends plus the unreported ones.
pub(crate) const QUEUE_DEPTH: u32 = (CALL_SLOTS * 2) as u32;
const _: () = assert!(CALL_SLOTS + (SIGNAL_EVERY as usize) < QUEUE_DEPTH as usize);
/// Deferred replies in flight to a client.
const LATE_SLOTS: usize = 4;
/// Depth of the queue pair for deferred replies, and of its completion queue.
pub(crate) const LATE_DEPTH: u32 = 16;
const _: () = assert!(LATE_SLOTS + (SIGNAL_EVERY as usize) < LATE_DEPTH as usize);
/// Calls of a session that may wait for a deferred reply.
pub(crate) const MAX_WAITING: usize = 4096;

/// Distance between two message buffers, in bytes.
const STRIDE: usize = MAX_CALL + 4096;
const _: () = assert!(HEADER + MAX_CALL <= STRIDE);

/// `wr_id` of sends. The `wr_id` of a receive is its buffer index.
const SEND_ID: u64 = u64::MAX;

fn memory_error(e: MemoryError) -> VerbsError {
    VerbsError::os("message buffers", std::io::Error::other(e.to_string()))
}

/// A queue pair with its message buffers.
#[derive(Debug)]
struct Messages {
    qp: Arc<dyn QueuePair>,
    mr: MrHandle,
    memory: Arc<Memory>,
    /// Messages in flight in each direction.
    slots: usize,
    outbox: Outbox,
}

impl Messages {
    /// Allocates buffers for `slots` messages in each direction, and posts all receives. `qp` is
    /// not connected yet, so no message can arrive before.
    fn new(pd: &dyn ProtectionDomain, qp: Arc<dyn QueuePair>, slots: usize) -> Result<Messages, VerbsError> {
        let memory = Arc::new(Memory::private(2 * slots * STRIDE).map_err(memory_error)?);
        let mr = pd.register(&memory, 0, memory.len() as u64, Access::LOCAL_WRITE)?;
        let messages = Messages { qp, mr, memory, slots, outbox: Outbox::default() };
        let posted = (0..slots).try_for_each(|index| messages.post_recv(index));
        posted.map_err(|e| VerbsError::Protocol(e.to_string()))?;
        Ok(messages)
    }

    fn recv_offset(index: usize) -> usize {
        index * STRIDE
    }

    fn send_offset(&self, slot: usize) -> usize {
        (self.slots + slot) * STRIDE
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.mr.addr() + offset as u64, length: length as u32, lkey: self.mr.lkey() }
    }

    /// Posts receive buffer `index`.
    fn post_recv(&self, index: usize) -> Result<(), PostError> {
        let sges = [self.sge(Self::recv_offset(index), HEADER + MAX_CALL)];
        self.qp.post_recv(&[RecvWr { wr_id: index as u64, sges: &sges }])
    }

    /// Sends `bytes` with `header` from the buffer of its slot. Returns the number of posts of this
    /// thread. A refusal may concern another message: see [`Outbox`].
    fn send(&self, header: Header, bytes: &[u8]) -> Result<u64, PostError> {
        let offset = self.send_offset(header.slot);
        self.memory.write(offset, &header.encode());
        self.memory.write(offset + HEADER, bytes);
        self.outbox.send(&*self.qp, self.sge(offset, HEADER + bytes.len()))
    }

    /// Returns the header of the message that `wc` reports, or `None` if no peer may send such a
    /// message.
    fn header_of(&self, wc: &WorkCompletion) -> Option<Header> {
        let body = (wc.byte_len as usize).checked_sub(HEADER)?;
        // A WRITE with immediate data also consumes a receive, but carries no message.
        if wc.opcode != WcOpcode::Recv || body > MAX_CALL || wc.wr_id >= self.slots as u64 {
            return None;
        }
        let mut header = [0; HEADER];
        self.memory.read(Self::recv_offset(wc.wr_id as usize), &mut header);
        Header::decode(header).filter(|header| header.slot < self.slots)
    }

    /// Copies the body of the message that `wc` reports. The message has a valid header.
    fn take(&self, wc: &WorkCompletion, out: &mut Vec<u8>) {
        out.resize((wc.byte_len as usize).saturating_sub(HEADER).min(MAX_CALL), 0);
        self.memory.read(Self::recv_offset(wc.wr_id as usize) + HEADER, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        provider::soft::SoftDevice,
        verbs::{Device, Progress, QpCaps, QpInit, WcStatus},
    };

    #[test]
    fn only_a_message_in_a_slot_is_taken() {
        let device = SoftDevice::new().unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4).unwrap();
        let (send_cq, recv_cq, caps) = (Arc::clone(&cq), cq, QpCaps::default());
        let qp =
            pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: true }).unwrap();
        let messages = Messages::new(&*pd, qp, CALL_SLOTS).unwrap();
        let arrived = |index: u64, slot: u64, len: usize, opcode| {
            if index < CALL_SLOTS as u64 {
                messages.memory.write(Messages::recv_offset(index as usize), &slot.to_le_bytes());
            }
            let (status, byte_len) = (WcStatus::Success, len as u32);
            let wc = WorkCompletion { wr_id: index, status, opcode, byte_len, ..WorkCompletion::EMPTY };
            messages.header_of(&wc).map(|header| header.slot)
        };
        let (last, longest) = (CALL_SLOTS as u64 - 1, HEADER + MAX_CALL);
        assert_eq!(arrived(3, last, HEADER, WcOpcode::Recv), Some(CALL_SLOTS - 1));
        assert_eq!(arrived(last, 0, longest, WcOpcode::Recv), Some(0));
        assert_eq!(arrived(3, last + 1, HEADER, WcOpcode::Recv), None);
        assert_eq!(arrived(3, u64::MAX, HEADER, WcOpcode::Recv), None);
        assert_eq!(arrived(3, 0, HEADER - 1, WcOpcode::Recv), None);
        assert_eq!(arrived(3, 0, longest + 1, WcOpcode::Recv), None);
        assert_eq!(arrived(3, 0, u32::MAX as usize, WcOpcode::Recv), None);
        assert_eq!(arrived(last + 1, 0, HEADER, WcOpcode::Recv), None);
        assert_eq!(arrived(3, 0, HEADER, WcOpcode::RecvRdmaWithImm), None);
        assert_eq!(arrived(3, 0, HEADER, WcOpcode::Send), None);
    }
}
