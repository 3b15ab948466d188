//! Splits a request of the device into its parts. No I/O, no locks, no clock.

use fuser::INodeNo;
use zerocopy::FromBytes;

use crate::fuse::session::wire::{abi::InHeader, opcode};

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
    Forget(Forgets<'a>),
    /// A signal of the caller of this request.
    Interrupt(u64),
    Operation {
        /// The structure of the operation.
        op: &'a [u8],
        payload: &'a [u8],
        /// Bytes of data that the operation moves.
        moved: usize,
        /// Offset of a read or a write.
        offset: Option<u64>,
    },
}

/// Inodes, and the number of their references that the kernel drops.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forgets<'a> {
    single: Option<(INodeNo, u64)>,
    /// Items of a BATCH_FORGET: `fuse_forget_one`.
    batch: &'a [u8],
}

impl Iterator for Forgets<'_> {
    type Item = (INodeNo, u64);

    fn next(&mut self) -> Option<(INodeNo, u64)> {
        self.single.take().or_else(|| {
            let ([ino, references], rest) = words(self.batch)?;
            self.batch = rest;
            Some((INodeNo(ino), references))
        })
    }
}

/// Returns true for a request that the kernel may make without a user of its own. These are reads
/// and writes of open files, and the work that follows a close.
fn may_have_no_user(code: u32) -> bool {
    matches!(
        code,
        opcode::READ
            | opcode::WRITE
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::RELEASE
            | opcode::RELEASEDIR
            | opcode::FSYNC
            | opcode::FSYNCDIR
            | opcode::DESTROY
    )
}

/// Returns true if only one user may make requests, and the caller is another one. The kernel keeps
/// other users out of such a mount, but not from files that they were given open.
pub(super) fn is_refused(header: &InHeader, only_user: Option<u32>) -> bool {
    // Threads of the kernel are root's.
    only_user.is_some_and(|user| header.uid != user && header.uid != 0) && !may_have_no_user(header.opcode)
}

/// Returns the number that an answer has, if the kernel waits for one.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    let (header, _) = InHeader::read_from_prefix(bytes).ok()?;
    (![FORGET, BATCH_FORGET, INTERRUPT].contains(&header.opcode)).then_some(header.unique)
}

/// Returns the length of the structure of an operation.
fn op_len(code: u32) -> usize {
    match code {
        opcode::GETATTR
        | opcode::MKNOD
        | opcode::RENAME2
        | opcode::FSYNC
        | opcode::FSYNCDIR
        | opcode::CREATE
        | opcode::TMPFILE => 16,
        opcode::SETATTR => 88,
        opcode::MKDIR | opcode::RENAME | opcode::LINK | opcode::OPEN | opcode::OPENDIR => 8,
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR => 8,
        opcode::READ | opcode::WRITE | opcode::READDIR | opcode::READDIRPLUS => 40,
        opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH | opcode::LSEEK | opcode::STATX => 24,
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
            Arrived::Forget(Forgets { single: Some((INodeNo(header.nodeid), count)), batch: &[] })
        }
        BATCH_FORGET => {
            // The number of items, and 32 unused bits.
            let (count, rest) = u32::read_from_prefix(rest).ok()?;
            let len = usize::try_from(count).ok()?.checked_mul(size_of::<[u64; 2]>())?;
            Arrived::Forget(Forgets { single: None, batch: rest.get(4..)?.get(..len)? })
        }
        INTERRUPT => {
            let ([of], _) = words(rest)?;
            Arrived::Interrupt(of & !RESENT)
        }
        code => {
            let (op, payload) = rest.split_at_checked(op_len(code))?;
            let moved = match code {
                // `size`, after a handle and an offset.
                opcode::READ | opcode::WRITE => u32::read_from_prefix(&op[16..]).ok()?.0 as usize,
                opcode::SETXATTR => u32::read_from_prefix(op).ok()?.0 as usize,
                _ => 0,
            };
            let offset = match code {
                // After a handle.
                opcode::READ | opcode::WRITE => Some(u64::read_from_prefix(&op[8..]).ok()?.0),
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
        let forgotten = |bytes: &[u8]| match parse(bytes).expect("whole").arrived {
            Arrived::Forget(forgets) => forgets.collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(forgotten(&one), [(INodeNo(7), 5)]);
        let mut batch = [2_u32, 0].as_bytes().to_vec();
        batch.extend_from_slice([8_u64, 1, 9, 2].as_bytes());
        let two = request(BATCH_FORGET, 2, &batch);
        assert_eq!(forgotten(&two), [(INodeNo(8), 1), (INodeNo(9), 2)]);
        assert_eq!(parse(&two[..two.len() - 1]), None, "cut");
        batch[0] = u32::MAX as u8;
        assert_eq!(parse(&request(BATCH_FORGET, 2, &batch)), None, "fewer items than it says");
    }

    /// Detects an interrupt that names no request after a takeover.
    #[test]
    fn an_interrupt_names_its_request() {
        for of in [10, RESENT | 10] {
            let bytes = request(INTERRUPT, of | 1, &of.to_ne_bytes());
            assert_eq!(parse(&bytes).expect("whole").arrived, Arrived::Interrupt(10));
        }
        assert_eq!(parse(&request(INTERRUPT, 11, &[0; 7])), None, "cut");
    }

    /// Detects a request of another user that reaches the file system, and one of the kernel's own
    /// threads that does not.
    #[test]
    fn another_user_is_refused_but_not_the_kernel() {
        let by = |code, uid| {
            let bytes = request(code, 2, &[]);
            let (header, _) = InHeader::read_from_prefix(&bytes).expect("a header");
            InHeader { uid, ..header }
        };
        assert!(is_refused(&by(opcode::GETATTR, 5), Some(4)));
        assert!(!is_refused(&by(opcode::GETATTR, 5), Some(5)) && !is_refused(&by(opcode::GETATTR, 5), None));
        assert!(!is_refused(&by(opcode::SETATTR, 0), Some(4)) && !is_refused(&by(opcode::WRITE, 5), Some(4)));
    }

    /// Detects a malformed request whose caller would wait for ever, and an answer to a FORGET.
    #[test]
    fn a_malformed_request_has_a_number_if_it_has_a_header() {
        assert_eq!(number(&request(opcode::READ, 6, &[])), Some(6));
        assert_eq!(number(&request(BATCH_FORGET, 6, &[])), None);
        assert_eq!(number(&request(opcode::READ, 6, &[])[..39]), None);
    }
}
