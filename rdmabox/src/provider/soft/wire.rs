//! Frames between two software queue pairs: a fixed header, then `payload_len` bytes.
//!
//! All integers are little-endian. Requests carry the sender's message sequence number; responses name the
//! request that they answer. Both directions of a connection carry both kinds.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    byteorder::little_endian::{U32, U64},
};

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = size_of::<Header>();

/// The requester wants to hear that this request and all before it are done.
pub(crate) const FLAG_ACK: u8 = 1;
/// Immediate data is present.
pub(crate) const FLAG_IMM: u8 = 2;
/// WRITE: the payload has been placed already, by direct access; `arg0` has its length.
/// MEMORY: the handle may be mapped writable.
pub(crate) const FLAG_PLACED: u8 = 4;

/// Header of a frame.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    pub opcode: u8,
    pub flags: u8,
    pub status: u8,
    pub reserved: u8,
    /// Bytes that follow the header.
    pub payload_len: U32,
    /// Sequence number of the request, or of the one answered.
    pub msn: U32,
    pub rkey: U32,
    pub addr: U64,
    pub imm: U32,
    /// READ: bytes wanted.
    pub length: U32,
    /// CAS: compare. FAA: add. Atomic response: the old value. MEMORY: its length.
    pub arg0: U64,
    /// CAS: swap. MEMORY: its id.
    pub arg1: U64,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Opcode {
    Send = 1,
    Write = 2,
    Read = 3,
    CompareSwap = 4,
    FetchAdd = 5,
    /// Everything up to `msn` is done.
    Ack = 16,
    /// `msn` was refused with `status`; nothing after it was executed.
    Nak = 17,
    /// Payload of READ `msn`.
    ReadResponse = 18,
    /// Old value of atomic `msn`.
    AtomicResponse = 19,
    /// A memory handle travels with this frame (Unix sockets only).
    Memory = 32,
    /// A descriptor to be held for as long as the sender's memory is touched travels with this frame (Unix sockets only).
    Tether = 33,
}

impl Opcode {
    pub(crate) fn from_code(code: u8) -> Option<Opcode> {
        use Opcode::*;
        [Send, Write, Read, CompareSwap, FetchAdd, Ack, Nak, ReadResponse, AtomicResponse, Memory, Tether]
            .into_iter()
            .find(|op| *op as u8 == code)
    }

    /// True if a descriptor travels with it.
    pub(crate) fn carries_descriptor(self) -> bool {
        matches!(self, Opcode::Memory | Opcode::Tether)
    }
}

impl Header {
    pub(crate) fn new(opcode: Opcode, msn: u32) -> Header {
        Header { opcode: opcode as u8, msn: msn.into(), ..Header::default() }
    }
}

/// First bytes of each side of a connection.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Hello {
    pub magic: [u8; 8],
    pub version: U32,
    pub qp_num: U32,
    /// Bytes of the shared region table that travels with this hello; 0 without one.
    pub table_len: U64,
}

/// Says that this is a queue pair of this provider.
pub(crate) const MAGIC: [u8; 8] = *b"rdmabox\x01";
/// Version of the frames.
pub(crate) const VERSION: u32 = 2;

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
    fn opcodes_round_trip_and_unknown_ones_are_refused() {
        let known: Vec<u8> = (0..=255).filter(|code| Opcode::from_code(*code).is_some()).collect();
        assert_eq!(known, [1, 2, 3, 4, 5, 16, 17, 18, 19, 32, 33]);
        for code in known {
            assert_eq!(Opcode::from_code(code).map(|op| op as u8), Some(code));
        }
    }
}
