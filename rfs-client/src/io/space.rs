//! Space of a file: allocation, deallocation, search for data and holes, copies at the server.
//!
//! # Concurrency
//! Session threads. Changes take the inode's `io` exclusively, and a seek takes it shared. Both
//! take `file` for moments, and changes `times`.

use std::sync::Arc;

use rfs_proto::{Attr, Copied, Errno, FallocateFlags, Reply, Request};

use crate::{
    error::ClientError,
    inode::{Inode, layout::Piece, size::LookStart, table::InodeTable},
    remote::Remote,
    requests::{
        TRIES,
        calls::{Calls, attr_of, wrong_kind},
        layouts::Layouts,
        record_reader::RecordReader,
    },
};

/// The target of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next allocated byte.
    Data,
    /// The next byte that is not allocated; the end of the file counts as one.
    Hole,
}

/// The space of open files.
#[derive(Debug)]
pub struct Space {
    remote: Arc<dyn Remote>,
    calls: Arc<Calls>,
    inodes: Arc<InodeTable>,
    records: Arc<RecordReader>,
    layouts: Arc<Layouts>,
}

impl Space {
    pub(crate) fn new(layouts: &Arc<Layouts>) -> Space {
        let (calls, records) = (Arc::clone(&layouts.calls), Arc::clone(&layouts.records));
        let (remote, inodes) = (Arc::clone(&calls.remote), Arc::clone(&calls.caching.inodes));
        Space { remote, calls, inodes, records, layouts: Arc::clone(layouts) }
    }

    /// Changes the space of an open file as fallocate(2) does. Blocks until reads and writes in
    /// flight have ended.
    pub fn fallocate(
        &self,
        ino: u64,
        offset: u64,
        len: u64,
        flags: FallocateFlags,
    ) -> Result<Attr, ClientError> {
        let issued_epoch = self.remote.epochs().in_use;
        let inode = self.inodes.opened(ino)?;
        let _exclusive = inode.exclusive();
        let request = Request::Fallocate { ino, offset, len, flags };
        // A failed request may have taken effect, or may do so later.
        let start = self.records.before_look();
        let attr = self.calls.call_guarded(&[&inode], issued_epoch, &request).and_then(attr_of);
        let attr = attr.inspect_err(|_| self.layouts.lose_layout(&inode))?;
        Ok(self.changed_at_server(&inode, start, attr))
    }

    /// Copies bytes between open files at the server. Blocks until reads and writes of the
    /// destination have ended. Returns the number of copied bytes, which is less than `len` at the
    /// end of the source or for a large `len`.
    pub fn copy(
        &self,
        (from, from_offset): (u64, u64),
        (to, to_offset): (u64, u64),
        len: u64,
    ) -> Result<u64, ClientError> {
        let issued_epoch = self.remote.epochs().in_use;
        let (source, inode) = (self.inodes.opened(from)?, self.inodes.opened(to)?);
        let _exclusive = inode.exclusive();
        let start = self.records.before_look();
        let request = Request::Copy { from, from_offset, to, to_offset, len };
        match self.calls.call_guarded(&[&source, &inode], issued_epoch, &request)? {
            Reply::Copied(Copied { bytes, .. }) if bytes > len => {
                Err(ClientError::Protocol("more bytes copied than requested"))
            }
            Reply::Copied(Copied { bytes, attr }) => {
                if bytes > 0 {
                    self.changed_at_server(&inode, start, attr);
                }
                Ok(bytes)
            }
            _ => wrong_kind(),
        }
    }

    /// Finds data or a hole at or behind `offset`.
    ///
    /// # Errors
    /// ENXIO if `offset` is past the end, or no more data follows.
    pub fn seek(&self, ino: u64, offset: u64, what: Seek) -> Result<u64, ClientError> {
        let inode = self.inodes.opened(ino)?;
        let _shared = inode.io.read();
        for _ in 0..TRIES {
            let now = self.records.look(&inode)?;
            if inode.layout_generation() != now.generation {
                self.layouts.follow_generation(&inode, now.generation)?;
                continue;
            }
            let len = now.size.checked_sub(offset).filter(|&len| len > 0).ok_or(Errno::ENXIO)?;
            self.layouts.know(&inode, u64::MAX)?;
            if !self.layouts.holes_hold(&inode)? {
                continue;
            }
            let pieces = inode.file.read().layout.pieces(offset, len);
            let mut at = offset;
            for piece in pieces {
                match (piece, what) {
                    (Piece::Data { .. }, Seek::Data) | (Piece::Hole { .. }, Seek::Hole) => return Ok(at),
                    _ => at += piece.len(),
                }
            }
            return if what == Seek::Hole { Ok(now.size) } else { Err(Errno::ENXIO.into()) };
        }
        Err(ClientError::Unstable)
    }

    /// Takes in the attributes of an open file that the server has changed. `start` is the time
    /// before the request.
    fn changed_at_server(&self, inode: &Inode, start: LookStart, attr: Attr) -> Attr {
        inode.file.write().changed(start, attr.layout_generation, attr.size);
        inode.times.lock().reset();
        inode.pages.recalled();
        inode.with_pending(attr)
    }
}
