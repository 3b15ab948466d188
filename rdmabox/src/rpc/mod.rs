//! Remote procedure calls over a queue pair of their own: SEND and RECV.
//!
//! A call takes one of [`CALL_SLOTS`] slots; its request and its reply carry the slot's number in an 8-byte header.
//! Both sides keep as many receives posted as there are slots, so that a message always finds one. A reply is sent
//! from the slot's own buffer at the host: the client uses a slot again only when it has the reply.

mod client;
mod server;

pub(crate) use client::RpcClient;
pub(crate) use server::{Handler, Reason, RpcServer};

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    memory::{Memory, MemoryError},
    verbs::{
        Access, MrHandle, PostError, ProtectionDomain, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge,
        VerbsError, WcOpcode, WorkCompletion,
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

const HEADER: usize = 8;
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
    /// Sends so far. Held over each post: a signaled one must not be overtaken, or the unsignaled ones would fill the
    /// queue.
    sends: Mutex<u32>,
}

impl Messages {
    fn new(pd: &dyn ProtectionDomain, qp: Arc<dyn QueuePair>) -> Result<Messages, VerbsError> {
        let memory = Arc::new(Memory::private(2 * CALL_SLOTS * STRIDE).map_err(memory_error)?);
        let mr = pd.register(&memory, 0, memory.len() as u64, Access::LOCAL_WRITE)?;
        Ok(Messages { qp, mr, memory, sends: Mutex::new(0) })
    }

    fn recv_offset(index: usize) -> usize {
        index * STRIDE
    }

    fn send_offset(slot: usize) -> usize {
        (CALL_SLOTS + slot) * STRIDE
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.mr.addr() + offset as u64, length: length as u32, lkey: self.mr.lkey() }
    }

    /// Gives receive buffer `index` to the next message.
    fn post_recv(&self, index: usize) -> Result<(), PostError> {
        let sges = [self.sge(Self::recv_offset(index), HEADER + MAX_CALL)];
        self.qp.post_recv(&[RecvWr { wr_id: index as u64, sges: &sges }])
    }

    fn post_all_recvs(&self) -> Result<(), PostError> {
        (0..CALL_SLOTS).try_for_each(|index| self.post_recv(index))
    }

    /// Sends `bytes` under `slot`, from the slot's buffer.
    fn send(&self, slot: usize, bytes: &[u8]) -> Result<(), PostError> {
        let offset = Self::send_offset(slot);
        self.memory.write(offset, &(slot as u64).to_le_bytes());
        self.memory.write(offset + HEADER, bytes);
        let sges = [self.sge(offset, HEADER + bytes.len())];
        let mut sends = self.sends.lock();
        *sends = sends.wrapping_add(1);
        let signaled = sends.is_multiple_of(SIGNAL_EVERY);
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let op = SendOp::Send { imm: None };
        self.qp.post_send(&[SendWr { wr_id: SEND_ID, op, sges: &sges, inline: None, flags }])
    }

    /// The slot of the message that `wc` reports; `None` if it is none that a peer may send.
    fn slot_of(&self, wc: &WorkCompletion) -> Option<usize> {
        let body = (wc.byte_len as usize).checked_sub(HEADER)?;
        // A WRITE with immediate data consumes a receive, too, and brings no message.
        if wc.opcode != WcOpcode::Recv || body > MAX_CALL || wc.wr_id >= CALL_SLOTS as u64 {
            return None;
        }
        let mut header = [0; HEADER];
        self.memory.read(Self::recv_offset(wc.wr_id as usize), &mut header);
        usize::try_from(u64::from_le_bytes(header)).ok().filter(|slot| *slot < CALL_SLOTS)
    }

    /// Copies the body of the message that `wc` reports, for which [`slot_of`](Self::slot_of) knows a slot.
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
        let qp = pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller }).unwrap();
        let messages = Messages::new(&*pd, qp).unwrap();
        let arrived = |index: u64, slot: u64, len: usize, opcode| {
            if index < CALL_SLOTS as u64 {
                messages.memory.write(Messages::recv_offset(index as usize), &slot.to_le_bytes());
            }
            let (status, byte_len) = (WcStatus::Success, len as u32);
            messages.slot_of(&WorkCompletion {
                wr_id: index,
                status,
                opcode,
                byte_len,
                ..WorkCompletion::EMPTY
            })
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
