//! A position in an open file, with the traits of `std::io`.

use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

use super::File;

/// A position in an open file: it implements [`Read`], [`Write`] and [`Seek`].
///
/// If the file was opened with [`append`](crate::OpenOptions::append), writes append, and the
/// position is behind their bytes afterwards.
#[derive(Clone, Debug)]
pub struct Cursor {
    file: File,
    position: u64,
}

impl File {
    /// Returns a position at the beginning of the file.
    pub fn cursor(&self) -> Cursor {
        Cursor { file: self.clone(), position: 0 }
    }
}

impl Cursor {
    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the position in bytes.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn advance(&mut self, len: usize) -> usize {
        self.position = self.position.saturating_add(len as u64);
        len
    }
}

impl Read for Cursor {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(out, self.position)?;
        Ok(self.advance(len))
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let len = self.file.read_vectored_at(buffers, self.position)?;
        Ok(self.advance(len))
    }
}

impl Write for Cursor {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.file.inner.appends {
            self.position = self.file.append(data)?;
            return Ok(self.advance(data.len()));
        }
        let len = self.file.write_at(data, self.position)?;
        Ok(self.advance(len))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.file.inner.appends {
            self.position = self.file.append_vectored(buffers)?;
            return Ok(self.advance(buffers.iter().map(|buffer| buffer.len()).sum()));
        }
        let len = self.file.write_vectored_at(buffers, self.position)?;
        Ok(self.advance(len))
    }

    fn flush(&mut self) -> io::Result<()> {
        // The bytes of a write are at the server when it returns.
        Ok(())
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let from = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.file.stat()?.size.checked_add_signed(by),
        };
        let limit = |position: &u64| *position <= rfs_proto::MAX_FILE_SIZE;
        self.position = from.filter(limit).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
