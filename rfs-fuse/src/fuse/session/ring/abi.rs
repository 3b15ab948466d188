//! The kernel's structures of FUSE over io_uring (`fuse.h`, version 7.42 and newer), in native byte
//! order.
//!
//! No I/O, no locks, no clock.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::fuse::session::wire::{
    abi::{InHeader, ReadWriteIn},
    opcode,
};

/// Length of the area for a header, and of the area for an operation's structure.
pub(super) const PART: usize = 128;

/// Headers of an entry of the ring: `fuse_uring_req_header`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct EntryHeaders {
    /// An [`InHeader`], then an `OutHeader`.
    pub(super) in_out: [u8; PART],
    /// The structure of the operation.
    pub(super) op_in: [u8; PART],
    pub(super) entry: EntryInOut,
}

/// `fuse_uring_ent_in_out`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct EntryInOut {
    pub(super) flags: u64,
    /// Identifies the request to the kernel when it is answered.
    pub(super) commit_id: u64,
    /// Length of the payload of the request or of the answer, in bytes.
    pub(super) payload_sz: u32,
    pub(super) padding: u32,
    pub(super) reserved: u64,
}

/// The commands of a ring: `enum fuse_uring_cmd`.
pub(super) const CMD_REGISTER: u32 = 1;
pub(super) const CMD_COMMIT_AND_FETCH: u32 = 2;

/// Arguments of a command: `fuse_uring_cmd_req`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct CmdReq {
    pub(super) flags: u64,
    pub(super) commit_id: u64,
    pub(super) qid: u16,
    pub(super) padding: [u8; 6],
}

impl EntryHeaders {
    /// Returns the number of data bytes of a read or write, and `None` for other requests.
    pub(super) fn bytes_moved(&self) -> Option<u32> {
        let (header, _) = InHeader::read_from_prefix(&self.in_out).ok()?;
        let (op, _) = ReadWriteIn::read_from_prefix(&self.op_in).ok()?;
        matches!(header.opcode, opcode::READ | opcode::WRITE).then_some(op.size)
    }

    /// Returns the number of data bytes of a request, and inode and offset of a read or write.
    pub(super) fn moved(&self) -> (u64, Option<(u64, u64)>) {
        let bytes = self.bytes_moved().map_or(0, u64::from);
        let header = InHeader::read_from_prefix(&self.in_out).map(|(header, _)| header);
        let op = ReadWriteIn::read_from_prefix(&self.op_in).map(|(op, _)| op);
        let place = header.ok().zip(op.ok()).map(|(header, op)| (header.nodeid, op.offset));
        (bytes, place.filter(|_| bytes > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        assert_eq!((size_of::<EntryHeaders>(), size_of::<CmdReq>()), (288, 24));
    }
}
