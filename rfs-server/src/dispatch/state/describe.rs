//! Encodes the whole state of an inode as operations of the log.
//!
//! # Concurrency
//! Pure functions; the caller holds the inode's shard.

use rfs_proto::Extent;

use crate::{
    memory_object::{
        op::{self, Op},
        replay,
    },
    metadata::namespace::{
        inode::{Body, Inode},
        xattr::XattrName,
    },
};

/// Approximate size in bytes of the pieces in which a description is logged, which need not be
/// atomic.
pub(in crate::dispatch) const CHUNK: usize = 64 << 10;
/// The number of extents in one operation.
const EXTENTS: usize = 1024;

/// Encodes the whole state of an inode. Calls `flush` when the buffer is full; `flush` empties
/// it.
pub(in crate::dispatch) fn describe_one<E>(
    ino: u64,
    inode: &Inode,
    ops: &mut Vec<u8>,
    flush: &mut impl FnMut(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mut add = |op: Op<'_>, ops: &mut Vec<u8>| {
        op::encode(&op, ops);
        if ops.len() < CHUNK { Ok(()) } else { flush(ops) }
    };
    add(replay::inode_op(ino, inode), ops)?;
    match &inode.body {
        Body::Directory(directory) => {
            for (name, entry) in replay::names(directory) {
                add(Op::Name(ino, name, Some(entry)), ops)?;
            }
        }
        Body::File(map) => {
            let all: Vec<Extent> = map.extents().collect();
            let mut from = 0;
            let mut rest = &all[..];
            while from < u64::MAX {
                let (now, later) = rest.split_at(rest.len().min(EXTENTS));
                let to = later.first().map_or(u64::MAX, |extent| extent.file);
                add(Op::Extents(ino, (from, to), now.to_vec()), ops)?;
                (from, rest) = (to, later);
            }
        }
        Body::Symlink(_) | Body::Special => {}
    }
    let names = inode.xattrs.as_ref().map_or_else(Vec::new, |xattrs| xattrs.names());
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if let Some(value) = xattr(inode, name) {
            add(Op::Xattr(ino, name, Some(serde_bytes::Bytes::new(&value))), ops)?;
        }
    }
    Ok(())
}

/// Returns the value of an extended attribute.
pub(in crate::dispatch) fn xattr(inode: &Inode, name: &[u8]) -> Option<Vec<u8>> {
    inode.xattrs.as_ref()?.get(XattrName::parse(name).ok()?).ok()
}
