//! Restores a snapshot into new memory. Clients see another memory: their sessions, open files and
//! locks do not exist there.
//!
//! # Concurrency
//! The thread that starts the server; nothing else uses the memory yet.

use std::{io::Read, sync::Arc};

use rdmabox::Memory;
use rfs_proto::FileKind;

use super::{format::ReadError, read::Contents};
use crate::{
    memory_object::replay::State,
    metadata::{attr_table::Table, namespace::inode::Body},
    space::{alloc::range::Range, bytes::Bytes, nonzero_bitmap::NonzeroBitmap},
};

/// Reason why a snapshot is not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The snapshot cannot be read.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// The snapshot is of a larger memory.
    #[error(
        "the snapshot needs {} bytes and {inodes} inodes, but the export has {lent} bytes and {slots} inodes: raise \
         --memory or --max-memory, --inodes, or those of --export", .arena
    )]
    Larger {
        /// Arena size of the snapshot in bytes.
        arena: u64,
        /// Inodes of the snapshot.
        inodes: u32,
        /// Size of the new arena in bytes.
        lent: u64,
        /// Inodes of the new memory.
        slots: u32,
    },
}

/// Writes a snapshot into memory that is zero: data into `bytes`, records into `table`, and the
/// blocks with data into `dirt`. `again` is a second reader of the file. Returns the state for
/// [`Dispatcher::kept`](crate::dispatch::Dispatcher::kept).
pub fn restore(
    contents: Contents,
    again: impl Read,
    (bytes, table): (&Bytes, &Arc<Memory>),
    dirt: Option<&NonzeroBitmap>,
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
    // Offsets lie within the arena of the snapshot: `Contents::read` checked it.
    let write = |place, data: &[u8]| {
        if bytes.write(place, data, true).is_err() {
            log::error!("the restored block at {place} of the arena is bad");
        }
    };
    let bad = |block, expected| {
        log::error!("the block at {block} of the arena was bad when the snapshot was made, and stays bad");
        bytes.expect(block, expected);
    };
    contents.bytes(again, write, bad)?;
    for (&ino, inode) in &contents.state.inodes {
        let mut attr = inode.attr(ino);
        if attr.kind == FileKind::Regular {
            attr.size = contents.sizes.get(&ino).copied().unwrap_or(0);
        }
        // `Contents::read` checked the slots, too.
        records.publish_all(&attr, &inode.space());
    }
    Ok(contents.state)
}
