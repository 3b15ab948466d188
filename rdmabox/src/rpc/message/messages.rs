//! Message buffers of a queue pair for calls.
//!
//! # Concurrency
//! Any thread may send and receive; each buffer belongs to the owner of its slot.

use super::{HEADER, Header, MAX_CALL, Outbox};
use crate::{
    mapping::{Memory, MemoryError},
    verbs::{
        Access, MrHandle, PostError, ProtectionDomain, QueuePair, RecvWr, Sge, VerbsError, WcOpcode,
        WorkCompletion,
    },
};
use std::sync::Arc;

/// Distance between two message buffers, in bytes.
const STRIDE: usize = MAX_CALL + 4096;
const _: () = assert!(HEADER + MAX_CALL <= STRIDE);

/// Returns the error for memory that cannot be allocated.
pub(crate) fn memory_error(e: MemoryError) -> VerbsError {
    VerbsError::os("message buffers", std::io::Error::other(e.to_string()))
}

/// A queue pair with its message buffers.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) mr: MrHandle,
    pub(crate) memory: Arc<Memory>,
    /// Messages in flight in each direction.
    pub(crate) slots: usize,
    pub(crate) outbox: Outbox,
}

impl Messages {
    /// Allocates buffers for `slots` messages in each direction, and posts all receives. `qp` is
    /// not connected yet, so no message can arrive before.
    pub(crate) fn new(
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        slots: usize,
    ) -> Result<Messages, VerbsError> {
        let memory = Arc::new(Memory::private(2 * slots * STRIDE).map_err(memory_error)?);
        let mr = pd.register(&memory, 0, memory.len() as u64, Access::LOCAL_WRITE)?;
        let messages = Messages { qp, mr, memory, slots, outbox: Outbox::default() };
        let posted = (0..slots).try_for_each(|index| messages.post_recv(index));
        posted.map_err(|e| VerbsError::Protocol(e.to_string()))?;
        Ok(messages)
    }

    pub(crate) fn recv_offset(index: usize) -> usize {
        index * STRIDE
    }

    pub(crate) fn send_offset(&self, slot: usize) -> usize {
        (self.slots + slot) * STRIDE
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.mr.addr() + offset as u64, length: length as u32, lkey: self.mr.lkey() }
    }

    /// Posts receive buffer `index`.
    pub(crate) fn post_recv(&self, index: usize) -> Result<(), PostError> {
        let sges = [self.sge(Self::recv_offset(index), HEADER + MAX_CALL)];
        self.qp.post_recv(&[RecvWr { wr_id: index as u64, sges: &sges }])
    }

    /// Sends `bytes` with `header` from the buffer of its slot. Returns the number of posts of this
    /// thread. A refusal may concern another message: see [`Outbox`].
    pub(crate) fn send(&self, header: Header, bytes: &[u8]) -> Result<u64, PostError> {
        let offset = self.send_offset(header.slot);
        self.memory.write(offset, &header.encode());
        self.memory.write(offset + HEADER, bytes);
        self.outbox.send(&*self.qp, self.sge(offset, HEADER + bytes.len()))
    }

    /// Returns the header of the message that `wc` reports, or `None` if no peer may send such a
    /// message.
    pub(crate) fn header_of(&self, wc: &WorkCompletion) -> Option<Header> {
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
    pub(crate) fn take(&self, wc: &WorkCompletion, out: &mut Vec<u8>) {
        out.resize((wc.byte_len as usize).saturating_sub(HEADER).min(MAX_CALL), 0);
        self.memory.read(Self::recv_offset(wc.wr_id as usize) + HEADER, out);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::CALL_SLOTS, *};
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
