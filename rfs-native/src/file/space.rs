//! Length and space of open files.

use rfs_client::{ClientError, Seek};
use rfs_proto::{Errno, FallocateFlags};

use super::{File, OpenFile};
use crate::{
    attributes::contents::{check_size, end_rights, set_size},
    error::{Result, on},
};

impl OpenFile {
    fn fallocate(
        &self,
        offset: u64,
        len: u64,
        flags: FallocateFlags,
    ) -> std::result::Result<(), ClientError> {
        self.check_write()?;
        self.core.client.space.fallocate(self.node.ino, offset, len, flags)?;
        end_rights(&self.core, &self.user, &self.node, None)
    }

    fn seek(&self, offset: u64, what: Seek) -> std::result::Result<Option<u64>, ClientError> {
        self.check_locks()?;
        match self.core.client.space.seek(self.node.ino, offset, what) {
            Ok(found) => Ok(Some(found)),
            Err(ClientError::Errno(Errno::ENXIO)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn set_len(&self, size: u64) -> std::result::Result<(), ClientError> {
        self.check_write()?;
        check_size(size)?;
        set_size(&self.core, &self.user, &self.node, size)
    }

    /// Cuts the file to no bytes, after an open that may do so.
    pub(crate) fn truncate(&self) -> std::result::Result<(), ClientError> {
        set_size(&self.core, &self.user, &self.node, 0)
    }

    fn copy_to(
        &self,
        offset: u64,
        (to, to_offset): (&OpenFile, u64),
        len: u64,
    ) -> std::result::Result<u64, ClientError> {
        self.check_read()?;
        to.check_write()?;
        if !std::ptr::eq(&*self.core, &*to.core) {
            return Err(Errno::EXDEV.into());
        }
        let (from, into) = ((self.node.ino, offset), (to.node.ino, to_offset));
        let copied = self.core.client.space.copy(from, into, len)?;
        end_rights(&to.core, &to.user, &to.node, None)?;
        Ok(copied)
    }
}

impl File {
    /// Sets the length. A smaller length frees space, a larger one adds a hole. Blocks until reads
    /// and writes in flight have ended.
    ///
    /// # Errors
    /// EBADF if the file is not open for writing, EINVAL beyond 2^63-1. A retry is safe.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.inner.set_len(size).map_err(on("set_len", self.ino()))
    }

    /// Allocates space for a range, and extends the file to its end. Writes there cannot fail with
    /// ENOSPC, and make no call to the server.
    ///
    /// # Errors
    /// ENOSPC changes nothing. A retry is safe.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.fallocate(offset, len, FallocateFlags::empty()).map_err(on("allocate", self.ino()))
    }

    /// Frees the space of a range, which then reads as zero. The length stays.
    ///
    /// # Errors
    /// EBADF if the file is not open for writing. A retry is safe.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.inner.fallocate(offset, len, flags).map_err(on("punch_hole", self.ino()))
    }

    /// Returns the offset of the next allocated byte at or behind `offset`, or `None`.
    ///
    /// # Errors
    /// Any error of the session.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.inner.seek(offset, Seek::Data).map_err(on("seek_data", self.ino()))
    }

    /// Returns the offset of the next hole at or behind `offset`. The end of the file counts as
    /// one. Returns `None` if `offset` is past the end.
    ///
    /// # Errors
    /// Any error of the session.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.inner.seek(offset, Seek::Hole).map_err(on("seek_hole", self.ino()))
    }

    /// Copies bytes to another open file of the same mount, at the server. Returns their number,
    /// which is less than `len` at the end of this file, and for more than 16 MiB.
    ///
    /// # Errors
    /// EXDEV if the files have different sessions, EINVAL if the ranges overlap.
    pub fn copy_to(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        self.inner.copy_to(offset, (&to.inner, to_offset), len).map_err(on("copy_to", self.ino()))
    }
}
