//! Operations of the log. Each states a result, never a difference.
//!
//! So an operation may be replayed twice. It may also be replayed before the complete later state
//! of its subject. Operations are encoded with postcard, one after the other; the log checks that
//! the bytes are complete before they are decoded.
//!
//! # Concurrency
//! Plain values.

use rfs_proto::{Extent, FileKind, Identity};
use serde::{Deserialize, Serialize};

use crate::locks::held_locks::Locked;

/// Part of an inode that depends on its kind, without extents, names and extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content<'a> {
    /// Regular file: end of the space that requests need, and end of the space that the file keeps,
    /// in bytes.
    File(u64, u64),
    /// Directory: inode of the parent, and last cookie.
    Directory(u64, u64),
    /// Symbolic link: target.
    Symlink(#[serde(with = "serde_bytes")] &'a [u8]),
    /// Any other kind.
    Special,
}

/// Attributes of an inode. The table has file sizes and the times of client writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes<'a> {
    /// Kind; matches `content`.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Last access time that a request has set.
    pub atime: i64,
    /// Last change of contents by the server.
    pub mtime: i64,
    /// Last change of attributes by the server.
    pub ctime: i64,
    /// Index of its record in the table.
    pub slot: u32,
    /// Version of its extended attributes.
    pub xattr_version: u64,
    /// The part that depends on the kind.
    #[serde(borrow)]
    pub content: Content<'a>,
}

/// A mount that reconnects, as the next server needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount<'a> {
    /// Protocol version of the mount and of its stored replies.
    pub version: u32,
    /// Identity of the mount.
    pub mount: Identity,
    /// Name of its key; `None` for an export without keys.
    pub key: Option<&'a str>,
    /// The mount may write.
    pub writes: bool,
    /// The mount caches attributes, names and pages.
    pub keeps: bool,
    /// The mount requires that no other session is attached.
    pub alone: bool,
}

/// A statement that holds from this point of the log on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op<'a> {
    /// Inode with its attributes; creates the inode if it does not exist.
    Inode(u64, #[serde(borrow)] Attributes<'a>),
    /// Inode that does not exist any more.
    Gone(u64),
    /// Directory, name, and inode with cookie; `None` if the name does not exist.
    Name(u64, #[serde(with = "serde_bytes")] &'a [u8], Option<(u64, u64)>),
    /// File, range from its first byte to its end, and all extents in the range.
    Extents(u64, (u64, u64), Vec<Extent>),
    /// Inode, name of an extended attribute, and value; `None` if the attribute does not exist.
    Xattr(u64, #[serde(with = "serde_bytes")] &'a [u8], #[serde(borrow)] Option<&'a serde_bytes::Bytes>),
    /// Last inode number, and end of the records, that were ever in use.
    Counters(u64, u32),
    /// The segment describes everything that exists.
    Complete,
    /// Session of a mount that can reconnect.
    Session(u64, #[serde(borrow)] Mount<'a>),
    /// Session that cannot reconnect.
    Abandoned(u64),
    /// Session that has ended.
    Left(u64),
    /// Session, inode, open count and write access. A count of 0 also means that the session has no
    /// locks there.
    Open(u64, u64, u64, bool),
    /// Inode and lock state of a range.
    Lock(u64, Locked),
    /// Session, slot, sequence number and reply of a request. A higher sequence number prevails.
    Turn(u64, u32, u64, #[serde(with = "serde_bytes")] &'a [u8]),
    /// Session and the first part of a value that it sends in several requests.
    Part(u64, #[serde(with = "serde_bytes")] &'a [u8]),
    /// Inode, ranges (first byte and length) that it released, and sessions that reach them while
    /// they have the inode open.
    GivenUp(u64, Vec<(u64, u64)>, Vec<u64>),
    /// As [`Op::Inode`], with the time of birth: nanoseconds from it to the last change of
    /// attributes, modulo 2^64. An inode whose birth is unknown has no such operation.
    Born(u64, #[serde(borrow)] Attributes<'a>, u64),
}

/// Appends an encoded operation to `out`.
pub fn encode(op: &Op<'_>, out: &mut Vec<u8>) {
    match postcard::to_extend(op, std::mem::take(out)) {
        Ok(encoded) => *out = encoded,
        // `Vec` accepts any length, and the operations have no type that postcard rejects.
        Err(e) => unreachable!("an operation could not be encoded: {e}"),
    }
}

/// Decodes the operations of a transaction. Stops after the first error.
pub fn decode(mut bytes: &[u8]) -> impl Iterator<Item = Result<Op<'_>, postcard::Error>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        match postcard::take_from_bytes(bytes) {
            Ok((op, rest)) => {
                bytes = rest;
                Some(Ok(op))
            }
            Err(e) => {
                bytes = &[];
                Some(Err(e))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rfs_proto::{LockClass, LockKind, LockRange};

    use super::*;

    fn content() -> impl Strategy<Value = (u8, u64, u64)> {
        (0..4u8, any::<u64>(), any::<u64>())
    }

    proptest! {
        #[test]
        fn operations_survive_encoding(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            (kind, a, b) in content(),
            times in any::<[i64; 3]>(),
            numbers in any::<[u32; 6]>(),
            extents in proptest::collection::vec(any::<(u64, u64, u64)>(), 0..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let content = [Content::File(a, b), Content::Directory(a, b), Content::Symlink(&bytes), Content::Special];
            let content = content[usize::from(kind)];
            let [perm, nlink, uid, gid, rdev, slot] = numbers;
            let [atime, mtime, ctime] = times;
            let kind = FileKind::Fifo;
            let attributes =
                Attributes { kind, perm, nlink, uid, gid, rdev, atime, mtime, ctime, slot, xattr_version: a, content };
            let extents = extents.into_iter().map(|(file, arena, len)| Extent { file, arena, len }).collect();
            let ops = [
                Op::Inode(a, attributes), Op::Gone(b), Op::Name(a, &bytes, Some((b, a))), Op::Name(b, &bytes, None),
                Op::Extents(a, (b, a), extents), Op::Xattr(b, &bytes, Some(serde_bytes::Bytes::new(&bytes))),
                Op::Xattr(b, &bytes, None), Op::Counters(a, slot), Op::Complete,
                Op::Session(a, Mount { version: perm, mount: Identity([7; 16]), key: Some("k"), writes: true, keeps: false, alone: true }),
                Op::Abandoned(a), Op::Left(b), Op::Open(a, b, a, true), Op::Turn(b, slot, a, &bytes), Op::Part(a, &bytes),
                Op::Lock(a, Locked {
                    owner: (a, b), class: LockClass::Flock, kind: LockKind::Shared, range: LockRange::ALL, pid: gid,
                }),
                Op::GivenUp(b, vec![(a, b)], vec![a, b]), Op::Born(b, attributes, a),
            ];
            let mut out = Vec::new();
            ops.iter().for_each(|op| encode(op, &mut out));
            let read: Result<Vec<Op<'_>>, _> = decode(&out).collect();
            prop_assert_eq!(read.unwrap(), ops.to_vec());
            // Any prefix is decoded up to its first incomplete operation.
            let part: Vec<_> = decode(&out[..cut.index(out.len())]).collect();
            for (op, expected) in part.iter().filter_map(|op| op.as_ref().ok()).zip(&ops) {
                prop_assert_eq!(op, expected);
            }
        }
    }
}
