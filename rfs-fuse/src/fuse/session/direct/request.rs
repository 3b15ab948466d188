//! Splits a request of the device into its parts. No I/O, no locks, no clock.

use fuser::INodeNo;
use zerocopy::FromBytes;

use crate::fuse::session::ring::{
    abi::{InHeader, PART},
    decode::opcode,
};

/// FUSE_UNIQUE_RESEND: the kernel has sent the request before.
const RESENT: u64 = 1 << 63;

/// Requests that do not come over a ring.
const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parsed<'a> {
    /// The header. Its number does not say whether the kernel has sent the request before.
    pub(super) header: InHeader,
    /// The number that the answer has.
    pub(super) unique: u64,
    /// True if the kernel has sent the request before.
    pub(super) is_repeated: bool,
    pub(super) arrived: Arrived<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived<'a> {
    /// Inodes, and the number of their references that the kernel drops.
    Forget(Vec<(INodeNo, u64)>),
    Interrupt,
    Operation {
        op: [u8; PART],
        payload: &'a [u8],
        /// Bytes of data that the operation moves.
        moved: usize,
        /// Offset of a read or a write.
        offset: Option<u64>,
    },
}

/// Returns the length of the structure of an operation.
fn op_len(code: u32) -> usize {
    match code {
        opcode::GETATTR
        | opcode::MKNOD
        | opcode::RENAME2
        | opcode::FSYNC
        | opcode::FSYNCDIR
        | opcode::CREATE => 16,
        opcode::SETATTR => 88,
        opcode::MKDIR | opcode::RENAME | opcode::LINK | opcode::OPEN | opcode::OPENDIR => 8,
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR => 8,
        opcode::READ | opcode::WRITE | opcode::READDIR | opcode::READDIRPLUS => 40,
        opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH | opcode::LSEEK => 24,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => 48,
        opcode::FALLOCATE => 32,
        opcode::COPY_FILE_RANGE => 56,
        // Only names, or nothing that is looked at.
        _ => 0,
    }
}

fn words<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    <[u64; N]>::read_from_prefix(bytes).ok()
}

/// Returns the parts of a request. `None` if it is too short.
pub(super) fn parse(bytes: &[u8]) -> Option<Parsed<'_>> {
    let (mut header, rest) = InHeader::read_from_prefix(bytes).ok()?;
    let unique = header.unique;
    let is_repeated = unique & RESENT != 0;
    header.unique &= !RESENT;
    let arrived = match header.opcode {
        FORGET => {
            let ([count], _) = words(rest)?;
            Arrived::Forget(vec![(INodeNo(header.nodeid), count)])
        }
        BATCH_FORGET => {
            // The number of items, and 32 unused bits.
            let (count, mut rest) = u32::read_from_prefix(rest).ok()?;
            rest = rest.get(4..)?;
            let mut list = Vec::new();
            for _ in 0..count {
                let ([ino, references], after) = words(rest)?;
                list.push((INodeNo(ino), references));
                rest = after;
            }
            Arrived::Forget(list)
        }
        INTERRUPT => Arrived::Interrupt,
        code => {
            let (own, payload) = rest.split_at_checked(op_len(code))?;
            let mut op = [0; PART];
            op[..own.len()].copy_from_slice(own);
            let moved = match code {
                // `size`, after a handle and an offset.
                opcode::READ | opcode::WRITE => u32::read_from_prefix(&own[16..]).ok()?.0 as usize,
                opcode::SETXATTR => u32::read_from_prefix(own).ok()?.0 as usize,
                _ => 0,
            };
            let offset = match code {
                // After a handle.
                opcode::READ | opcode::WRITE => Some(u64::read_from_prefix(&own[8..]).ok()?.0),
                _ => None,
            };
            Arrived::Operation { op, payload, moved, offset }
        }
    };
    Some(Parsed { header, unique, is_repeated, arrived })
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn request(opcode: u32, unique: u64, rest: &[u8]) -> Vec<u8> {
        let len = (size_of::<InHeader>() + rest.len()) as u32;
        let header =
            InHeader { len, opcode, unique, nodeid: 7, uid: 1, gid: 2, pid: 3, total_extlen: 0, padding: 0 };
        [header.as_bytes(), rest].concat()
    }

    #[test]
    fn a_request_that_was_sent_before_keeps_its_number() {
        let bytes = request(opcode::LOOKUP, RESENT | 10, b"name\0");
        let parsed = parse(&bytes).expect("whole");
        assert_eq!((parsed.header.unique, parsed.unique, parsed.is_repeated), (10, RESENT | 10, true));
        assert!(matches!(parsed.arrived, Arrived::Operation { payload: b"name\0", moved: 0, .. }));
    }

    #[test]
    fn data_comes_behind_the_structure() {
        let mut op = [0; 40];
        op[16..20].copy_from_slice(&4_u32.to_ne_bytes());
        let bytes = request(opcode::WRITE, 2, &[&op[..], b"data"].concat());
        let parsed = parse(&bytes).expect("whole");
        assert!(matches!(parsed.arrived, Arrived::Operation { payload: b"data", moved: 4, .. }));
        assert_eq!(parse(&bytes[..60]), None, "cut");
        assert_eq!(parse(&bytes[..10]), None, "cut");
    }

    #[test]
    fn forgets_are_listed() {
        let one = request(FORGET, 2, &5_u64.to_ne_bytes());
        assert_eq!(parse(&one).expect("whole").arrived, Arrived::Forget(vec![(INodeNo(7), 5)]));
        let mut batch = [2_u32, 0].as_bytes().to_vec();
        batch.extend_from_slice([8_u64, 1, 9, 2].as_bytes());
        let two = request(BATCH_FORGET, 2, &batch);
        let expected = vec![(INodeNo(8), 1), (INodeNo(9), 2)];
        assert_eq!(parse(&two).expect("whole").arrived, Arrived::Forget(expected));
        assert_eq!(parse(&two[..two.len() - 1]), None, "cut");
    }
}
