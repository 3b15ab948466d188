//! The buffer of a read.
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
