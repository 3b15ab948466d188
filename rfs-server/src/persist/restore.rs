//! Memory made of a snapshot, and a dispatcher over it. For the clients it is another memory: nothing that they had is there for them.
//!
//! Threading: a server that starts has everything to itself.

use std::{io::Read, sync::Arc};

use rdmabox::Memory;
use rfs_proto::FileKind;

use super::{Contents, ReadError};
use crate::{
    alloc::Range,
    bytes::Bytes,
    durable::{Dirt, replay::State},
    namespace::Body,
    table::Table,
};

/// Why a snapshot is not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// It cannot be read (any more).
    #[error("{0}")]
    Read(#[from] ReadError),
    /// It is of a larger memory.
    #[error(
        "it is of {} bytes and {inodes} inodes, which do not fit into {lent} bytes and {slots} inodes: lend at least as much \
         (--memory, --inodes, --export)", .arena
    )]
    Larger {
        /// Bytes that it is of.
        arena: u64,
        /// Inodes that it is of.
        inodes: u32,
        /// Bytes that there are.
        lent: u64,
        /// Inodes that there are.
        slots: u32,
    },
}

/// Puts what a snapshot has into memory that is zero: the bytes into `bytes`, the records into `table`. Which blocks may hold bytes then is
/// noted in `dirt`. What is left of it is for [`Dispatcher::kept`](crate::dispatch::Dispatcher::kept).
pub fn restore(
    contents: Contents,
    again: impl Read,
    (bytes, table): (&Bytes, &Arc<Memory>),
    dirt: Option<&Dirt>,
) -> Result<State, RestoreError> {
    let header = contents.header;
    let records = Table::new(Arc::clone(table));
    let (lent, slots) = (bytes.len(), records.slots());
    if header.arena > lent || header.inodes > slots {
        return Err(RestoreError::Larger { arena: header.arena, inodes: header.inodes, lent, slots });
    }
    for inode in contents.state.inodes.values() {
        if let (Body::File(map), Some(dirt)) = (&inode.body, dirt) {
            let ranges = map.extents().map(|extent| Range { start: extent.arena, len: extent.len });
            ranges.for_each(|range| dirt.set(range, true));
        }
    }
    // Places lie within the arena of the snapshot, as was checked.
    let write = |place, data: &[u8]| {
        if bytes.write(place, data, true).is_err() {
            log::error!("what was restored at {place} of the arena is bad already");
        }
    };
    let bad = |block, expected| {
        log::error!("the block at {block} of the arena was bad when the snapshot was made, and is so still");
        bytes.expect(block, expected);
    };
    contents.bytes(again, write, bad)?;
    for (&ino, inode) in &contents.state.inodes {
        let mut attr = inode.attr(ino);
        if attr.kind == FileKind::Regular {
            attr.size = contents.sizes.get(&ino).copied().unwrap_or(0);
        }
        // Slots do, too.
        records.publish_all(&attr, &inode.space());
    }
    Ok(contents.state)
}
