//! Reads, writes and appends that block.
//!
//! Bytes go from the caller's buffer to the server's memory and back, without a cache. A read sees
//! each write of any mount that returned before the read began.

use rfs_client::{ClientError, LentRights};
use rfs_proto::Errno;

use super::{File, OpenFile};
use crate::{
    attributes::contents::end_rights,
    error::{Error, Result, on},
};

/// Maximum bytes of one operation of the session. A longer read or write is several operations.
pub(super) const MAX_OPERATION: usize = 16 << 20;

impl OpenFile {
    pub(super) fn read_some(&self, out: &mut [u8], offset: u64) -> std::result::Result<usize, ClientError> {
        self.check_read()?;
        let read = self.core.client.reads.read_into(self.node.ino, offset, out)?;
        self.was_read();
        Ok(read)
    }

    fn write_some(&self, data: &[u8], offset: u64) -> std::result::Result<usize, ClientError> {
        self.check_write()?;
        if data.is_empty() {
            return Ok(0);
        }
        let data = &data[..data.len().min(MAX_OPERATION)];
        let written = self.core.client.writes.write_some(self.node.ino, offset, data)?;
        self.finish_write(written.rights)?;
        Ok(written.len)
    }

    /// Does the work that has to follow the bytes of a write before the write returns. Clears
    /// rights that the file lends, and has other mounts drop their pages. `rights` are the rights
    /// after the write, if known.
    pub(super) fn finish_write(&self, rights: Option<LentRights>) -> std::result::Result<(), ClientError> {
        let (client, ino) = (&self.core.client, self.node.ino);
        end_rights(&self.core, &self.user, &self.node, rights)?;
        if client.pages.are_cached_elsewhere(ino) {
            match client.pages.drop_others_pages(ino) {
                // The file is closed by now, so no page has to be dropped.
                Err(ClientError::Errno(e)) => log::debug!("pages of inode {ino} stay: {e}"),
                dropped => dropped?,
            }
        }
        Ok(())
    }

    fn append_all(&self, data: &[u8]) -> std::result::Result<u64, ClientError> {
        self.check_write()?;
        let offset = self.core.client.appends.append(self.node.ino, data)?;
        self.finish_write(None)?;
        Ok(offset)
    }
}

impl File {
    fn failed(&self, call: &'static str) -> impl FnOnce(ClientError) -> Error + use<> {
        on(call, self.ino())
    }

    /// Reads bytes at an offset. Returns their number, which is less than the buffer's length only
    /// at the end of the file. Bytes of a hole are zero.
    ///
    /// Up to 16 MiB are one operation. Beside a truncation a read may have the earlier length, and
    /// zeros behind the new end.
    ///
    /// # Errors
    /// EBADF if the file is not open for reading, EIO if a lock of it was lost. A retry is safe.
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        if out.len() <= MAX_OPERATION {
            return self.inner.read_some(out, offset).map_err(self.failed("read"));
        }
        self.read_full_at(out, offset)
    }

    /// Reads as [`read_at`](Self::read_at), in several operations.
    pub(crate) fn read_full_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        let mut len = 0;
        for part in out.chunks_mut(MAX_OPERATION) {
            let read = self.inner.read_some(part, offset.saturating_add(len as u64));
            let read = read.map_err(self.failed("read"))?;
            len += read;
            if read < part.len() {
                break;
            }
        }
        Ok(len)
    }

    /// Returns up to `len` bytes at an offset. The length of the file bounds the memory of a long
    /// read.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at); ENOMEM if the memory of this process cannot hold the bytes.
    pub(crate) fn read_up_to(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.inner.check_read().map_err(self.failed("read"))?;
        let len = match len {
            0..=MAX_OPERATION => len,
            _ => {
                let rest = self.stat()?.size.saturating_sub(offset);
                len.min(usize::try_from(rest).unwrap_or(usize::MAX))
            }
        };
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| self.failed("read")(Errno::ENOMEM.into()))?;
        bytes.resize(len, 0);
        let read = self.read_full_at(&mut bytes, offset)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Reads exactly so many bytes at an offset.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at); ENODATA if the file ends before.
    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        match self.read_at(out, offset)? {
            len if len == out.len() => Ok(()),
            _ => Err(self.failed("read")(Errno::ENODATA.into())),
        }
    }

    /// Writes bytes at an offset, and returns their number. The bytes are visible to all mounts
    /// when the call returns.
    ///
    /// Up to 16 MiB are one operation, and longer data is written in part. If the server is full,
    /// the call writes the bytes that fit.
    ///
    /// # Errors
    /// EBADF if the file is not open for writing, ENOSPC if nothing fits, EFBIG beyond 2^63-1, EIO
    /// if a lock of the file was lost. A retry of the same bytes is safe.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.inner.write_some(data, offset).map_err(self.failed("write"))
    }

    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at). The first bytes may be in place after an error.
    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> Result<()> {
        while !data.is_empty() {
            let written = self.write_at(data, offset)?;
            data = &data[written..];
            // The write has checked that the offset does not overflow.
            offset += written as u64;
        }
        Ok(())
    }

    /// Appends bytes in one piece, and returns their offset. Appends of all mounts follow each
    /// other. The bytes show at once, or not at all.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at). ENOSPC leaves the file as it was. ETIMEDOUT if another
    /// mount holds the append lock for too long. After an error that
    /// [may have happened](Error::may_have_happened), a retry may append twice.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.inner.append_all(data).map_err(self.failed("append"))
    }
}
