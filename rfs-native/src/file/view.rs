//! Bytes of a file that a caller reads in place.

use rdmabox::Memory;
use rfs_client::ClientError;

use super::File;
use crate::error::{Result, on};

/// Bytes of an open file. On the server's host they are in place: the view refers to the server's
/// memory, and nothing was copied. Otherwise the view has a copy.
///
/// A truncation cannot take the space of a view away: it waits until the view is dropped, on this
/// mount and on others. So a view must be short-lived. If another mount waits for longer than the
/// server's recall timeout (8 s by default), this mount loses its session. A thread that has a view
/// of a file must not truncate the file or free its space.
///
/// Other mounts may write to bytes in place meanwhile. So there is no safe slice of them.
#[derive(Debug)]
pub struct View {
    bytes: Bytes,
    // Dropped after the bytes: the last close waits for them.
    _file: File,
}

#[derive(Debug)]
enum Bytes {
    InPlace(rfs_client::View),
    Copy(Box<[u8]>),
}

impl File {
    /// Returns a view of up to `len` bytes at an offset. Past the end of the file there are fewer.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn view(&self, offset: u64, len: usize) -> Result<View> {
        let bytes = match self.in_place(offset, len).map_err(on("view", self.ino()))? {
            Some(view) => Bytes::InPlace(view),
            None => Bytes::Copy(self.read_up_to(offset, len)?.into()),
        };
        Ok(View { bytes, _file: self.clone() })
    }

    fn in_place(
        &self,
        offset: u64,
        len: usize,
    ) -> std::result::Result<Option<rfs_client::View>, ClientError> {
        self.inner.check_read()?;
        let view = self.inner.core.client.reads.view(self.ino(), offset, len)?;
        if view.is_some() {
            self.inner.was_read();
        }
        Ok(view)
    }
}

impl View {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::InPlace(view) => view.len(),
            Bytes::Copy(bytes) => bytes.len(),
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the view refers to the server's memory.
    pub fn is_in_place(&self) -> bool {
        matches!(self.bytes, Bytes::InPlace(_))
    }

    /// Copies bytes from `at` on into a buffer, and returns their number.
    pub fn copy_to(&self, at: usize, out: &mut [u8]) -> usize {
        let len = out.len().min(self.len().saturating_sub(at));
        match &self.bytes {
            Bytes::InPlace(view) if len > 0 => view.memory().read(view.offset() + at, &mut out[..len]),
            Bytes::Copy(bytes) if len > 0 => out[..len].copy_from_slice(&bytes[at..at + len]),
            _ => {}
        }
        len
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        self.copy_to(0, &mut out);
        out
    }

    /// Returns the mapped memory, and the offset of the first byte, if the bytes are in place.
    pub fn memory(&self) -> Option<(&Memory, usize)> {
        match &self.bytes {
            Bytes::InPlace(view) => Some((view.memory(), view.offset())),
            Bytes::Copy(_) => None,
        }
    }

    /// Returns the address of the first byte. It is valid for [`len`](Self::len) bytes until the
    /// view is dropped. Bytes in place may change at any time.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.bytes {
            Bytes::InPlace(view) => {
                let address = view.memory().addr() as usize + view.offset();
                std::ptr::with_exposed_provenance(address)
            }
            Bytes::Copy(bytes) => bytes.as_ptr(),
        }
    }
}
