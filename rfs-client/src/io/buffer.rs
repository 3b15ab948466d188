//! The destination of a read.
//!
//! # Concurrency
//! The calling thread.

/// Returns the first `len` bytes of a buffer, which grows as needed.
pub(crate) fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// A place for the bytes of a read.
pub(crate) trait ReadTarget {
    /// Returns the first `len` bytes, which is at most the length of the read.
    fn room(&mut self, len: usize) -> &mut [u8];

    /// Returns the target as a buffer that grows, if it is one.
    fn growing(&mut self) -> Option<&mut Vec<u8>>;
}

impl ReadTarget for Vec<u8> {
    fn room(&mut self, len: usize) -> &mut [u8] {
        room(self, len)
    }

    fn growing(&mut self) -> Option<&mut Vec<u8>> {
        Some(self)
    }
}

/// A buffer of the length of the read.
impl ReadTarget for &mut [u8] {
    fn room(&mut self, len: usize) -> &mut [u8] {
        &mut self[..len]
    }

    fn growing(&mut self) -> Option<&mut Vec<u8>> {
        None
    }
}
