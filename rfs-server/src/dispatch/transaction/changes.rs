//! Encodes the changes of a transaction, and logs them.
//!
//! # Concurrency
//! Belongs to a transaction, which holds the shards of its inodes. So the changes of an inode are
//! logged in order.

use seeded_faults::seeded;

use super::{
    freed_space::FreedSpace,
    locked_inodes::{Changes, LockedInodes},
};
use crate::{
    dispatch::state::{
        describe::xattr,
        journal::{self, Journal, LoggedReply},
        shards::Writing,
    },
    memory_object::{
        log::Full,
        op::{self, Op},
        replay,
    },
    metadata::namespace::{
        Namespace,
        inode::{Body, Inode},
        inodes::Inodes,
    },
};

/// Logs the changes of a transaction, whose inodes are in `ops` already, and its reply.
///
/// # Errors
/// The log has no room. The caller must not report success, nor reuse the space of
/// `freed`.
pub(in crate::dispatch) fn log(
    journal: &Journal,
    inodes: &LockedInodes<'_, Writing>,
    changes: &Changes,
    freed: &FreedSpace,
    reply: Option<LoggedReply<'_>>,
    ops: &mut Vec<u8>,
) -> Result<(), Full> {
    seeded!(RenameNotLogged => if changes.names.len() > 1 { return Ok(()) });
    for &(session, ino) in &changes.opens {
        let (times, writes) = inodes.shard(ino).open_files.of(session, ino);
        op::encode(&Op::Open(session, ino, times, writes), ops);
    }
    for (ino, ranges, holders) in freed.reachable().filter(|_| !seeded!(GivenUpForgotten)) {
        let ranges = ranges.iter().map(|range| (range.start, range.len)).collect();
        op::encode(&Op::GivenUp(ino, ranges, holders.to_vec()), ops);
    }
    journal.append_with(ops, reply)
}

/// Encodes the changes of a transaction and passes them to `append`. Does nothing if there are no
/// changes and no reply.
pub(in crate::dispatch) fn encode<T>(
    namespace: &mut Namespace<LockedInodes<'_, Writing>>,
    has_reply: bool,
    append: impl FnOnce(&LockedInodes<'_, Writing>, &Changes, &mut Vec<u8>) -> T,
) -> Option<T> {
    let changes = namespace.inodes_mut().take_changes();
    if changes.is_empty() && !has_reply {
        return None;
    }
    let inodes = namespace.inodes_mut();
    journal::with_ops(|ops| {
        for &ino in &changes.inodes {
            match inodes.unlogged_mut(ino) {
                Ok(inode) => changed(ino, inode, ops),
                Err(_) => op::encode(&Op::Gone(ino), ops),
            }
        }
        for (parent, name) in &changes.names {
            let Some(directory) = inodes.get(*parent).ok().and_then(Inode::directory) else { continue };
            let entry = directory.get(name).zip(directory.cookie(name));
            op::encode(&Op::Name(*parent, name, entry), ops);
        }
        Some(append(inodes, &changes, ops))
    })
}

/// Encodes the changes of an inode: all attributes, and those extents and extended attributes
/// that have changed.
fn changed(ino: u64, inode: &mut Inode, ops: &mut Vec<u8>) {
    op::encode(&replay::inode_op(ino, inode), ops);
    if let Body::File(map) = &mut inode.body
        && let Some((from, to)) = map.take_touched()
    {
        op::encode(&Op::Extents(ino, (from, to), map.within(from, to).collect()), ops);
    }
    let touched = inode.xattrs.as_mut().map_or_else(Vec::new, |xattrs| xattrs.take_touched());
    for name in touched {
        let value = xattr(inode, &name);
        op::encode(&Op::Xattr(ino, &name, value.as_deref().map(serde_bytes::Bytes::new)), ops);
    }
}
