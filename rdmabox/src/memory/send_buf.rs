//! The buffers that started requests own: the promise that a buffer must make, and the types that
//! make it.
//!
//! A started request keeps its buffer until it is done, and the device uses the address of the
//! bytes meanwhile. The buffer itself moves: into the request, between threads, and back to the
//! caller. So the bytes must be elsewhere: in an allocation, in a static, in registered memory.
//!
//! # Concurrency
//! Plain values.

use std::sync::Arc;

/// A buffer that a started request can send from. A program may implement it for its own type of
/// buffer.
///
/// | buffer | it comes back as |
/// |-|-|
/// | `Vec<u8>`, `Box<[u8]>`, `Box<[u8; N]>` | the value, for the next request |
/// | `Arc<[u8]>`, `Arc<Vec<u8>>`, `Arc<[u8; N]>` | a reference; requests share the bytes |
/// | `&'static [u8]`, `&'static [u8; N]` | the reference |
/// | [`Buffer`](crate::Buffer) | the buffer, in registered memory: no copy, no registration |
/// | [`Slice`](crate::Slice) | a part of one of the others, with the whole buffer inside |
/// | `Bytes`, `BytesMut` (feature `bytes`) | the handle |
///
/// An array by value is none: its bytes are inside of the value and move with it. Box it.
///
/// ```compile_fail
/// # fn start(session: &rdmabox::Session, remote: rdmabox::RemoteAddr) {
/// let _ = session.start_write(remote, [0_u8; 64]);
/// # }
/// ```
///
/// # Safety
/// From the first call of [`bytes`](Self::bytes) on, each call must return the same bytes. Their
/// address and length stay the same also after a move of the value. This ends when the value is
/// dropped or borrowed mutably. Until then no code may change the bytes, also not through another
/// handle or through interior mutability. The drop of another handle must not free them.
///
/// The implementation must not keep the bytes inside of the value. It may own them by a `Box`: the
/// runtime does not assert the unique access of a `Box` while a request is under way.
pub unsafe trait SendBuf: Send + 'static {
    /// Returns the bytes to send.
    fn bytes(&self) -> &[u8];
}

/// A buffer that a started request can receive into: of the types of [`SendBuf`], those that own
/// their bytes alone.
///
/// # Safety
/// As for [`SendBuf`]. [`bytes_mut`](Self::bytes_mut) must return the same bytes as
/// [`bytes`](SendBuf::bytes). No other handle may read them between the start and the end of a
/// request.
pub unsafe trait RecvBuf: SendBuf {
    /// Returns the bytes to fill; a request fills all of them.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Implements [`SendBuf`] for types that dereference to bytes elsewhere.
macro_rules! send_buf {
    ($($(#[$cfg:meta])? [$($generics:tt)*] $type:ty, $why:literal;)*) => {$(
        $(#[$cfg])?
        // SAFETY: see the last argument.
        #[doc = $why]
        unsafe impl<$($generics)*> SendBuf for $type {
            fn bytes(&self) -> &[u8] {
                &self[..]
            }
        }
    )*};
}

/// Implements [`RecvBuf`] for types that own their bytes alone.
macro_rules! recv_buf {
    ($($(#[$cfg:meta])? [$($generics:tt)*] $type:ty;)*) => {$(
        $(#[$cfg])?
        // SAFETY: the value owns its bytes alone, at the address that `bytes` returns.
        unsafe impl<$($generics)*> RecvBuf for $type {
            fn bytes_mut(&mut self) -> &mut [u8] {
                &mut self[..]
            }
        }
    )*};
}

send_buf! {
    [] Vec<u8>, "The elements stay in place when the vector moves.";
    [] Box<[u8]>, "The bytes stay in place when the box moves.";
    [const N: usize] Box<[u8; N]>, "The bytes stay in place when the box moves.";
    [] Arc<[u8]>, "Shared bytes never change, and stay in place while a reference exists.";
    [const N: usize] Arc<[u8; N]>, "Shared bytes never change, and stay in place while a reference exists.";
    [] &'static [u8], "The bytes stay borrowed until the process ends.";
    [const N: usize] &'static [u8; N], "The bytes stay borrowed until the process ends.";
    [] Arc<Vec<u8>>, "A shared vector never changes, and its elements stay in place.";
    #[cfg(feature = "bytes")] [] bytes::Bytes,
        "The handle refers to bytes that never change and stay in place while a handle exists.";
    #[cfg(feature = "bytes")] [] bytes::BytesMut, "The handle owns its range of an allocation alone.";
}

recv_buf! {
    [] Vec<u8>;
    [] Box<[u8]>;
    [const N: usize] Box<[u8; N]>;
    #[cfg(feature = "bytes")] [] bytes::BytesMut;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves the buffer to the heap and back, as a request does.
    fn stays<B: SendBuf>(buf: B, expected: &[u8]) -> B {
        let before = buf.bytes().as_ptr_range();
        let moved = Box::new((0_u64, buf));
        assert_eq!(moved.1.bytes().as_ptr_range(), before);
        let (_, buf) = *moved;
        assert_eq!((buf.bytes().as_ptr_range(), buf.bytes()), (before, expected));
        buf
    }

    fn fills<B: RecvBuf>(buf: B) {
        let mut buf = stays(buf, &[3; 5]);
        let range = buf.bytes().as_ptr_range();
        buf.bytes_mut().fill(7);
        assert_eq!((buf.bytes().as_ptr_range(), buf.bytes()), (range, &[7; 5][..]));
    }

    #[test]
    fn bytes_of_each_type_stay_in_place_when_the_buffer_moves() {
        fills(vec![3; 5]);
        fills(vec![3; 5].into_boxed_slice());
        fills(Box::new([3; 5]));
        stays(Arc::new(vec![3; 5]), &[3; 5]);
        stays(Arc::<[u8]>::from([3; 5]), &[3; 5]);
        stays(Arc::new([3; 5]), &[3; 5]);
        stays(&[3_u8; 5][..], &[3; 5]);
        stays(&[3_u8; 5], &[3; 5]);
        fills(crate::memory::Slice::new(vec![1, 3, 3, 3, 3, 3, 1], 1..6));
        #[cfg(feature = "bytes")]
        {
            stays(bytes::Bytes::from(vec![3; 9]).slice(2..7), &[3; 5]);
            // The owner has its bytes inside; the handle allocates a place for it.
            stays(bytes::Bytes::from_owner([3; 5]), &[3; 5]);
            fills(bytes::BytesMut::from(&[3; 5][..]));
        }
    }
}
