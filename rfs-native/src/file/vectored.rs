//! Reads into several buffers, and writes from several buffers.

use std::io::{IoSlice, IoSliceMut};

use rfs_client::{ClientError, ReadData};

use super::{File, OpenFile, data::MAX_OPERATION, scratch::with_scratch};
use crate::error::{Result, on};

/// Distributes bytes over buffers.
fn scatter(data: ReadData<'_>, buffers: &mut [IoSliceMut<'_>]) -> usize {
    let total = match &data {
        ReadData::Bytes(bytes) => bytes.len(),
        ReadData::Mapped { len, .. } => *len,
    };
    let mut at = 0;
    for buffer in buffers {
        let len = buffer.len().min(total - at);
        match &data {
            ReadData::Bytes(bytes) => buffer[..len].copy_from_slice(&bytes[at..at + len]),
            ReadData::Mapped { memory, offset, .. } => memory.read(offset + at, &mut buffer[..len]),
        }
        at += len;
    }
    total
}

impl OpenFile {
    fn read_buffers(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> std::result::Result<usize, ClientError> {
        self.check_read()?;
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let (reads, len) = (&self.core.client.reads, total.min(MAX_OPERATION));
        let read = with_scratch(|scratch| {
            reads.read(self.node.ino, offset, len, scratch, |data| scatter(data, buffers))
        })?;
        self.was_read();
        Ok(read)
    }
}

impl File {
    /// Reads bytes at an offset into buffers, one after the other, in one operation of up to
    /// 16 MiB. Returns the number of bytes.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        match buffers {
            [one] => self.read_at(one, offset),
            buffers => self.inner.read_buffers(buffers, offset).map_err(on("read", self.ino())),
        }
    }

    /// Writes the bytes of buffers, one after the other, at an offset, in one operation of up to
    /// 16 MiB. Returns the number of bytes.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        match buffers {
            [one] => self.write_at(one, offset),
            buffers => gathered(buffers, |bytes| self.write_at(bytes, offset)),
        }
    }

    /// Appends the bytes of buffers in one piece, and returns their offset.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_vectored(&self, buffers: &[IoSlice<'_>]) -> Result<u64> {
        match buffers {
            [one] => self.append(one),
            buffers => gathered(buffers, |bytes| self.append(bytes)),
        }
    }
}

/// Runs `work` with the bytes of all buffers.
fn gathered<R>(buffers: &[IoSlice<'_>], work: impl FnOnce(&[u8]) -> R) -> R {
    with_scratch(|scratch| {
        scratch.clear();
        buffers.iter().for_each(|buffer| scratch.extend_from_slice(buffer));
        work(scratch)
    })
}
