//! Buffers in registered memory, for requests that neither copy nor register.
//!
//! # Concurrency
//! Plain values.

use std::ops::{Deref, DerefMut, RangeBounds};

use super::{PreMrBuf, RecvBuf, SendBuf, Slice, own_buf::OwnBuf};

/// A buffer in registered memory. Requests of its session neither copy nor register it.
#[derive(Debug)]
pub struct Buffer(Place);

#[derive(Debug)]
enum Place {
    /// A block that returns to the pool when it is dropped.
    Pool(PreMrBuf),
    Own(OwnBuf),
}

impl Buffer {
    /// Takes a part of the buffer for a started request. [`Slice::into_inner`] gives the whole
    /// buffer back. Requests of the part neither copy nor register it either.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Slice<Buffer> {
        Slice::new(self, range)
    }
}

impl From<PreMrBuf> for Buffer {
    fn from(buf: PreMrBuf) -> Buffer {
        Buffer(Place::Pool(buf))
    }
}

impl From<OwnBuf> for Buffer {
    fn from(buf: OwnBuf) -> Buffer {
        Buffer(Place::Own(buf))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Pool(buf) => buf.as_slice(),
            Place::Own(buf) => buf.as_slice(),
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Place::Pool(buf) => buf.as_mut_slice(),
            Place::Own(buf) => buf.as_mut_slice(),
        }
    }
}

// SAFETY: the buffer owns its pool block or its memory, which stays mapped in place until the
// drop.
unsafe impl SendBuf for Buffer {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: the buffer owns its pool block or its memory, which stays mapped in place until the
// drop.
unsafe impl RecvBuf for Buffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}
