//! Remote procedure calls over a queue pair of their own: SEND and RECV.
//!
//! A call takes one of [`CALL_SLOTS`] slots; its request and its reply carry the slot's number in an 8-byte header.
//! Both sides keep as many receives posted as there are slots, so that a message always finds one. A reply is sent
//! from the slot's own buffer at the host: the client uses a slot again only when it has the reply.
//!
//! A service may answer later than it is asked. An ordinary call keeps its slot meanwhile. One that is made to wait gets a
//! number: the host says at once that the reply is deferred, which frees the slot, and sends it over another queue pair
//! when it is there ([`LateReplies`], [`WaitingCalls`]). That one has few slots, which the client gives back one by one, so
//! that any number of calls can wait; and nobody but those who wait for such replies looks at it, so that ordinary
//! calls take no part in any of this. It is joined when it is first needed.
//!
//! A call need not be waited for ([`StartedCalls`]): then its reply is taken by whoever polls, or looks, next. A thread can have several under way and wait
//! for all (`call_all`): no more than leave half of the slots free, beyond the first.
//!
//! Requests can also be written into memory at the host, and their answers be fetched from there: then messages are for calls
//! that take long, and for waking a host that sleeps ([`fetch`]).

mod client;
mod fetch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod header;
mod late;
mod outbox;
mod reply;
mod server;
mod started;
mod turns;
mod waiting;

pub(crate) use client::RpcClient;
pub(crate) use fetch::{FetchClient, HostSlots, OneSided};
pub(crate) use late::LateReplies;
pub use reply::{Later, Reply};
pub(crate) use server::{Handler, Reason, RpcServer};
use started::StartedCalls;
pub use started::StartedReply;
pub use waiting::Cancel;
pub(crate) use waiting::WaitingCalls;

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

/// Longest request and longest reply, in bytes.
pub const MAX_CALL: usize = 64 * 1024;
/// Calls that a session can have under way; further ones wait.
pub(crate) const CALL_SLOTS: usize = 16;
/// Sends between two signaled ones.
const SIGNAL_EVERY: u32 = 8;
/// Queue depths: receives for all slots, and sends with those that wait to be reported.
pub(crate) const QUEUE_DEPTH: u32 = (CALL_SLOTS * 2) as u32;
const _: () = assert!(CALL_SLOTS + (SIGNAL_EVERY as usize) < QUEUE_DEPTH as usize);
/// Late replies that are under way to a client at a time.
const LATE_SLOTS: usize = 4;
/// Queue depth of the queue pair for late replies, and of its completion queue.
pub(crate) const LATE_DEPTH: u32 = 16;
const _: () = assert!(LATE_SLOTS + (SIGNAL_EVERY as usize) < LATE_DEPTH as usize);
/// Calls of a session that can wait for a late reply at a time.
pub(crate) const MAX_WAITING: usize = 4096;

/// Bytes between two buffers.
const STRIDE: usize = MAX_CALL + 4096;
const _: () = assert!(HEADER + MAX_CALL <= STRIDE);

/// `wr_id` of sends; receives have the index of their buffer.
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
    /// Messages that can be under way each way.
    slots: usize,
    outbox: Outbox,
}

impl Messages {
    /// With buffers for `slots` messages each way. All receives are posted: `qp` is not connected yet, so that no message
    /// comes before.
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

    /// Gives receive buffer `index` to the next message.
    fn post_recv(&self, index: usize) -> Result<(), PostError> {
        let sges = [self.sge(Self::recv_offset(index), HEADER + MAX_CALL)];
        self.qp.post_recv(&[RecvWr { wr_id: index as u64, sges: &sges }])
    }

    /// Sends `bytes` under `header`, from its slot's buffer. How many posts this thread made; a refusal may be that of another
    /// message: see [`Outbox`].
    fn send(&self, header: Header, bytes: &[u8]) -> Result<u64, PostError> {
        let offset = self.send_offset(header.slot);
        self.memory.write(offset, &header.encode());
        self.memory.write(offset + HEADER, bytes);
        self.outbox.send(&*self.qp, self.sge(offset, HEADER + bytes.len()))
    }

    /// The header of the message that `wc` reports; `None` if it is none that a peer may send.
    fn header_of(&self, wc: &WorkCompletion) -> Option<Header> {
        let body = (wc.byte_len as usize).checked_sub(HEADER)?;
        // A WRITE with immediate data consumes a receive, too, and brings no message.
        if wc.opcode != WcOpcode::Recv || body > MAX_CALL || wc.wr_id >= self.slots as u64 {
            return None;
        }
        let mut header = [0; HEADER];
        self.memory.read(Self::recv_offset(wc.wr_id as usize), &mut header);
        Header::decode(header).filter(|header| header.slot < self.slots)
    }

    /// Copies the body of the message that `wc` reports, which has a header.
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
