//! Frames between two software queue pairs: a fixed header, then `payload_len` bytes.
//!
//! All integers are little-endian. Requests carry the sender's message sequence number. Responses
//! carry the number of the request that they answer. Both directions of a connection carry
//! requests and responses.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    byteorder::little_endian::{U16, U32, U64},
};

use crate::verbs::AtomicOp;

/// Size of a header in bytes.
pub(crate) const HEADER_LEN: usize = size_of::<Header>();

/// Requests an acknowledgement of this request and all earlier requests.
pub(crate) const FLAG_ACK: u8 = 1;
/// Immediate data is present.
pub(crate) const FLAG_IMM: u8 = 2;
/// WRITE: the payload was written by direct access; `arg0` is its length. MEMORY: the memory may
/// be mapped writable.
pub(crate) const FLAG_PLACED: u8 = 4;

/// Header of a frame.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    pub opcode: u8,
    pub flags: u8,
    pub status: u8,
    pub reserved: u8,
    /// Number of payload bytes behind the header.
    pub payload_len: U32,
    /// Sequence number of the request, or of the answered request.
    pub msn: U32,
    pub rkey: U32,
    pub addr: U64,
    pub imm: U32,
    /// READ: requested bytes.
    pub length: U32,
    /// CAS: compare. FAA: addend. FETCH_OP: operand. Atomic response: old value. MEMORY: length.
    pub arg0: U64,
    /// CAS: swap. FETCH_OP: kind, see [`Header::atomic_op`]. MEMORY: id. FENCE: id of memory that
    /// is no longer used, or [`NO_MEMORY`].
    pub arg1: U64,
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Opcode {
    Send = 1,
    Write = 2,
    Read = 3,
    CompareSwap = 4,
    FetchAdd = 5,
    /// An atomic of `AtomicOp`.
    FetchOp = 6,
    /// Acknowledges every request up to `msn`.
    Ack = 16,
    /// Refuses `msn` with `status`; no later request was executed.
    Nak = 17,
    /// Payload of READ `msn`.
    ReadResponse = 18,
    /// Old value of atomic `msn`.
    AtomicResponse = 19,
    /// A memory handle (Unix sockets only).
    Memory = 32,
    /// A descriptor that the receiver holds while it can access the sender's memory (Unix sockets
    /// only).
    Tether = 33,
    /// Requests a [`Fenced`](Opcode::Fenced) after the receiver's executions on mapped memory that
    /// have begun (Unix sockets only).
    Fence = 34,
    /// Confirms the oldest unconfirmed fence.
    Fenced = 35,
}

/// `arg1` of a fence that takes no memory away.
pub(crate) const NO_MEMORY: u64 = u64::MAX;

impl Opcode {
    pub(crate) fn from_code(code: u8) -> Option<Opcode> {
        use Opcode::*;
        let requests = [Send, Write, Read, CompareSwap, FetchAdd, FetchOp];
        let answers = [Ack, Nak, ReadResponse, AtomicResponse];
        let shared = [Memory, Tether, Fence, Fenced];
        requests.into_iter().chain(answers).chain(shared).find(|op| *op as u8 == code)
    }

    /// Returns true if a descriptor travels with the frame.
    pub(crate) fn carries_descriptor(self) -> bool {
        matches!(self, Opcode::Memory | Opcode::Tether)
    }
}

impl Header {
    pub(crate) fn new(opcode: Opcode, msn: u32) -> Header {
        Header { opcode: opcode as u8, msn: msn.into(), ..Header::default() }
    }

    /// Stores the kind and the operand of an atomic.
    pub(crate) fn set_atomic_op(&mut self, op: AtomicOp) {
        let (kind, operand) = match op {
            AtomicOp::Swap(operand) => (1u64, operand),
            AtomicOp::And(operand) => (2, operand),
            AtomicOp::Or(operand) => (3, operand),
            AtomicOp::Xor(operand) => (4, operand),
            AtomicOp::Min(operand) => (5, operand),
            AtomicOp::Max(operand) => (6, operand),
        };
        (self.arg0, self.arg1) = (operand.into(), kind.into());
    }

    /// Returns the atomic of a [`FetchOp`](Opcode::FetchOp), or `None` if its kind is unknown.
    pub(crate) fn atomic_op(&self) -> Option<AtomicOp> {
        let operand = self.arg0.get();
        Some(match self.arg1.get() {
            1 => AtomicOp::Swap(operand),
            2 => AtomicOp::And(operand),
            3 => AtomicOp::Or(operand),
            4 => AtomicOp::Xor(operand),
            5 => AtomicOp::Min(operand),
            6 => AtomicOp::Max(operand),
            _ => return None,
        })
    }
}

/// First bytes that each side of a connection sends.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Hello {
    pub magic: [u8; 8],
    pub version: U16,
    /// [`MAPS_NOTHING`] or 0.
    pub flags: U16,
    pub qp_num: U32,
    /// Size in bytes of the shared region table that travels with this hello; 0 without a table.
    pub table_len: U64,
}

/// Identifies a queue pair of this provider.
pub(crate) const MAGIC: [u8; 8] = *b"rdmabox\x01";
/// Version of the frame format.
pub(crate) const VERSION: u16 = 3;
/// Flag of a side that maps no memory of its peer, which therefore sends it no handles.
pub(crate) const MAPS_NOTHING: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_bytes_are_fixed() {
        let mut header = Header::new(Opcode::CompareSwap, 0x0102_0304);
        header.flags = FLAG_ACK | FLAG_IMM;
        header.status = 10;
        header.payload_len = 5.into();
        header.rkey = 6.into();
        header.addr = 0x1122_3344_5566_7788.into();
        header.imm = 7.into();
        header.length = 8.into();
        header.arg0 = 9.into();
        header.arg1 = 10.into();
        let expected: [u8; 48] = [
            4, 3, 10, 0, 5, 0, 0, 0, 4, 3, 2, 1, 6, 0, 0, 0, //
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 7, 0, 0, 0, 8, 0, 0, 0, //
            9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(header.as_bytes(), expected);
        assert_eq!(HEADER_LEN, 48);
    }

    #[test]
    fn opcodes_round_trip_and_unknown_opcodes_are_rejected() {
        let known: Vec<u8> = (0..=255).filter(|code| Opcode::from_code(*code).is_some()).collect();
        assert_eq!(known, [1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 32, 33, 34, 35]);
        for code in known {
            assert_eq!(Opcode::from_code(code).map(|op| op as u8), Some(code));
        }
    }

    #[test]
    fn atomics_round_trip_and_unknown_kinds_are_rejected() {
        use AtomicOp::*;
        let known = [Swap(7), And(8), Or(u64::MAX), Xor(0), Min(9), Max(10)];
        for (kind, op) in (1..).zip(known) {
            let mut header = Header::new(Opcode::FetchOp, 0);
            header.set_atomic_op(op);
            assert_eq!((header.arg1.get(), header.atomic_op()), (kind, Some(op)));
        }
        for kind in [0, 7, 1 << 8 | 1, 1 << 32 | 1, u64::MAX] {
            let header = Header { arg1: kind.into(), ..Header::new(Opcode::FetchOp, 0) };
            assert_eq!(header.atomic_op(), None);
        }
    }
}
