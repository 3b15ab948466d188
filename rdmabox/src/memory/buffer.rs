//! Caller-owned buffers that requests may use after the issuing call has returned.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use super::{PreMrBuf, own_buf::OwnBuf};

/// A buffer to send from.
///
/// # Safety
/// [`bytes`](Self::bytes) must return the same bytes at the same address on every call, also
/// after a move of the value, until the value is dropped or borrowed mutably. A move of the value
/// must not assert unique access to the bytes, as the move of a `Box` does.
pub unsafe trait SendBuf: Send + 'static {
    /// Returns the bytes to send.
    fn bytes(&self) -> &[u8];
}

/// A buffer to receive into.
///
/// # Safety
/// As for [`SendBuf`]. [`bytes_mut`](Self::bytes_mut) must return the same bytes as
/// [`bytes`](SendBuf::bytes).
pub unsafe trait RecvBuf: SendBuf {
    /// Returns the bytes to fill; a request fills all of them.
    fn bytes_mut(&mut self) -> &mut [u8];
}

// SAFETY: a move of a vector does not move its elements.
unsafe impl SendBuf for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: a move of a vector does not move its elements.
unsafe impl RecvBuf for Vec<u8> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: the bytes stay borrowed until the process ends.
unsafe impl SendBuf for &'static [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: shared bytes never change, and they stay in place while a reference exists.
unsafe impl SendBuf for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A buffer in registered memory. Requests of its session neither copy nor register it.
#[derive(Debug)]
pub struct Buffer(Place);

#[derive(Debug)]
enum Place {
    /// A block that returns to the pool when it is dropped.
    Pool(PreMrBuf),
    Own(OwnBuf),
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
