//! Bytes of an open file in mapped memory, for callers that keep them for a while.
//!
//! A view counts as a read in flight: the file keeps the space until the view is dropped. So a
//! truncation by any mount waits for the view. The view's mount loses its session if the wait is
//! longer than the server's recall timeout.
//!
//! # Concurrency
//! Any thread. Takes the locks of a read, and holds none of them while the view exists.

use std::sync::{Arc, atomic::Ordering};

use rdmabox::Memory;
use rfs_proto::Errno;

use crate::{
    error::ClientError,
    inode::{
        layout::{Piece, is_in_arena},
        started_requests::StartedGuard,
    },
    io::read::Reads,
    requests::TRIES,
};

/// Bytes of an open file in the server's memory, which is mapped here. Other clients may change
/// them, but no other file gets their space.
#[derive(Debug)]
pub struct View {
    memory: Arc<Memory>,
    offset: usize,
    len: usize,
    _started: StartedGuard,
}

impl View {
    /// Returns the mapping.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the offset of the first byte in the mapping.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Reads {
    /// Returns a view of up to `len` bytes at `offset` of an open file. Past the end there are
    /// fewer bytes. Returns `None` if no mapping has all of them in one piece. The memory may be
    /// unmapped or have checksums, or the range has holes, several pieces, or a piece in a store.
    pub fn view(&self, ino: u64, offset: u64, len: usize) -> Result<Option<View>, ClientError> {
        let Some(map) = self.arena_map.as_ref().filter(|_| self.records.is_mapped()) else {
            return Ok(None);
        };
        if self.checked.is_some() {
            return Ok(None);
        }
        let inode = self.inodes.opened(ino)?;
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Err(Errno::EBADF.into());
        }
        self.times.was_read(&inode);
        for _ in 0..TRIES {
            let _places = inode.layout_users.read();
            let now = self.records.look(&inode)?;
            if inode.layout_generation() != now.generation {
                self.layouts.follow_generation(&inode, now.generation)?;
                continue;
            }
            let len = offset.saturating_add(len as u64).min(now.size).saturating_sub(offset);
            if len == 0 {
                return Ok(None);
            }
            let (pieces, _) = self.layouts.readable(&inode, offset, len)?;
            let [Piece::Data { arena, len }] = pieces[..] else { return Ok(None) };
            if !is_in_arena(arena) {
                return Ok(None);
            }
            // Layouts lie inside the arena (checked), and the arena is mapped whole.
            let offset = map.offset + arena as usize;
            let memory = Arc::clone(&map.memory);
            return Ok(Some(View { memory, offset, len: len as usize, _started: StartedGuard::new(&inode) }));
        }
        Err(ClientError::Unstable)
    }
}
