//! The language of the log: how things are after a change, never by how much they changed. To read one twice, or after a later
//! state of the same thing has been read whole, does no harm.
//!
//! Threading: plain values. Encoded with postcard, one after the other; who reads them has checked that the bytes are whole.

use rfs_proto::{Extent, FileKind, Identity, LockClass, LockKind, LockRange};
use serde::{Deserialize, Serialize};

/// What an inode is besides its attributes, as far as each of its records says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content<'a> {
    /// A regular file, but for its extents: first byte behind what was asked for, and behind what is kept.
    File(u64, u64),
    /// A directory, but for its names: what it lies in, and the last cookie.
    Directory(u64, u64),
    /// A symbolic link's target.
    Symlink(#[serde(with = "serde_bytes")] &'a [u8]),
    /// Nothing.
    Special,
}

/// The attributes of an inode. Sizes of files and times of client writes are in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes<'a> {
    /// Kind; it fits the content.
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
    /// Last access, of those that were set.
    pub atime: i64,
    /// Last change of contents that the server made.
    pub mtime: i64,
    /// Last change of attributes that the server made.
    pub ctime: i64,
    /// Its record in the attribute table.
    pub slot: u32,
    /// Of its extended attributes.
    pub xattr_version: u64,
    /// Contents.
    #[serde(borrow)]
    pub content: Content<'a>,
}

/// A mount that comes back, as far as the next server has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount<'a> {
    /// Version of the protocol that it speaks, which is that of its replies.
    pub version: u32,
    /// Which one.
    pub mount: Identity,
    /// The name of its key.
    pub key: Option<&'a str>,
    /// It may change something.
    pub writes: bool,
    /// It keeps what it is told.
    pub keeps: bool,
    /// Nobody else may be attached.
    pub alone: bool,
}

/// What an owner has locked in a range: nothing else there is his.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    /// Session and owner.
    pub owner: (u64, u64),
    /// In which of the two worlds.
    pub class: LockClass,
    /// How.
    pub kind: LockKind,
    /// Where.
    pub range: LockRange,
    /// For whoever asks who is in the way.
    pub pid: u32,
}

/// Something that is so from here on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op<'a> {
    /// An inode has these attributes; it is made if there is none.
    Inode(u64, #[serde(borrow)] Attributes<'a>),
    /// There is no such inode.
    Gone(u64),
    /// A directory has a name for an inode with a cookie, or no such name.
    Name(u64, #[serde(with = "serde_bytes")] &'a [u8], Option<(u64, u64)>),
    /// A file has these extents in a range, first byte to the one behind it, and holes between them.
    Extents(u64, (u64, u64), Vec<Extent>),
    /// An inode has an extended attribute, or not.
    Xattr(u64, #[serde(with = "serde_bytes")] &'a [u8], #[serde(borrow)] Option<&'a serde_bytes::Bytes>),
    /// No inode has had a number beyond this one, nor a record beyond the other.
    Counters(u64, u32),
    /// Everything that there is has been said since the segment began.
    Complete,
    /// A session is attached, of a mount that comes back.
    Session(u64, #[serde(borrow)] Mount<'a>),
    /// A session is attached that does not come back.
    Stranger(u64),
    /// There is no such session any more.
    Left(u64),
    /// A session has an inode open so many times, and may write to it or not. Not at all: nor has it any locks there.
    Open(u64, u64, u64, bool),
    /// Who has what locked of an inode.
    Lock(u64, Locked),
    /// The last thing that a session asked for in a slot had this number and this reply, unless there was a higher one.
    Turn(u64, u32, u64, #[serde(with = "serde_bytes")] &'a [u8]),
    /// The beginning of a value that a session has sent.
    Part(u64, #[serde(with = "serde_bytes")] &'a [u8]),
    /// An inode has given up ranges, first byte and length, that these sessions can reach while they have it open.
    GivenUp(u64, Vec<(u64, u64)>, Vec<u64>),
}

/// Appends an operation to bytes.
pub fn encode(op: &Op<'_>, out: &mut Vec<u8>) {
    match postcard::to_extend(op, std::mem::take(out)) {
        Ok(encoded) => *out = encoded,
        // A Vec takes any number of bytes and the operations hold no type that postcard refuses.
        Err(e) => unreachable!("an operation could not be encoded: {e}"),
    }
}

/// The operations in the bytes of a transaction; the rest is an error if they make no sense.
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

    use super::*;

    fn content() -> impl Strategy<Value = (u8, u64, u64)> {
        (0..4u8, any::<u64>(), any::<u64>())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
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
                Op::Stranger(a), Op::Left(b), Op::Open(a, b, a, true), Op::Turn(b, slot, a, &bytes), Op::Part(a, &bytes),
                Op::Lock(a, Locked {
                    owner: (a, b), class: LockClass::Flock, kind: LockKind::Shared, range: LockRange::ALL, pid: gid,
                }),
                Op::GivenUp(b, vec![(a, b)], vec![a, b]),
            ];
            let mut out = Vec::new();
            ops.iter().for_each(|op| encode(op, &mut out));
            let read: Result<Vec<Op<'_>>, _> = decode(&out).collect();
            prop_assert_eq!(read.unwrap(), ops.to_vec());
            // Any beginning of it is read as far as it goes.
            let part: Vec<_> = decode(&out[..cut.index(out.len())]).collect();
            for (op, expected) in part.iter().filter_map(|op| op.as_ref().ok()).zip(&ops) {
                prop_assert_eq!(op, expected);
            }
        }
    }
}
