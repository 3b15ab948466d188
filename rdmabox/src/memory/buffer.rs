//! Buffers of a caller's own that requests may use after the call that made them.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use super::{PreMrBuf, own_buf::OwnBuf};

/// A buffer to send from.
///
/// # Safety
/// [`bytes`](Self::bytes) gives the same bytes at the same address every time, also after the value has been moved,
/// until the value is dropped or borrowed mutably; and moving the value does not assert that its bytes are not read
/// elsewhere (as moving a `Box` does).
pub unsafe trait SendBuf: Send + 'static {
    /// What is sent.
    fn bytes(&self) -> &[u8];
}

/// A buffer to receive into.
///
/// # Safety
/// As [`SendBuf`], for [`bytes_mut`](Self::bytes_mut), which gives the same bytes as [`bytes`](SendBuf::bytes).
pub unsafe trait RecvBuf: SendBuf {
    /// What is filled: all of it.
    fn bytes_mut(&mut self) -> &mut [u8];
}

// SAFETY: the elements of a vector stay where they are when the vector is moved.
unsafe impl SendBuf for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: as above.
unsafe impl RecvBuf for Vec<u8> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: borrowed for as long as the program runs.
unsafe impl SendBuf for &'static [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: shared bytes are not changed, and stay where they are while anybody holds them.
unsafe impl SendBuf for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A buffer in registered memory: requests of its session that use it are neither copied nor registered.
#[derive(Debug)]
pub struct Buffer(Place);

#[derive(Debug)]
enum Place {
    /// Goes back when it is dropped.
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

// SAFETY: its block of the pool, or its own memory, stays mapped at its place and belongs to it until it is dropped.
unsafe impl SendBuf for Buffer {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: as above.
unsafe impl RecvBuf for Buffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}
