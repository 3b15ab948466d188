//! A part of a buffer that a started request owns.
//!
//! # Concurrency
//! A plain value.

use std::{
    fmt,
    ops::{Deref, DerefMut, Range, RangeBounds},
};

use super::{RecvBuf, SendBuf};
use crate::verbs::offsets;

/// A part of a buffer, for a started request of that part only. It owns the whole buffer, which
/// [`into_inner`](Self::into_inner) gives back. It dereferences to the bytes of the part.
///
/// A started request of a slice returns the slice with its outcome:
/// `transfer.wait()?.into_inner()` is the buffer. After a failure it is in
/// [`Failed::buffer`](crate::Failed::buffer).
///
/// ```
/// use rdmabox::{MemoryServer, Session, SessionOptions, Slice};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
/// # let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
/// # let remote = MemoryServer::locate(&session)?.base();
/// let mut record = vec![0; 64];
/// record[..5].copy_from_slice(b"hello");
/// let part = Slice::new(record, ..5);
/// session.write(remote, &part)?;
/// let record = part.into_inner();
/// assert_eq!(record.len(), 64);
/// # Ok(())
/// # }
/// ```
///
/// Requests of several parts at a time need a buffer with several owners: `Arc<[u8]>` or `Bytes`
/// to send from, parts of `BytesMut` to receive into.
#[derive(Clone)]
pub struct Slice<B> {
    buf: B,
    /// Inside of the buffer.
    range: Range<usize>,
}

impl<B: SendBuf> Slice<B> {
    /// Takes the part `range` of `buf`.
    ///
    /// # Panics
    /// If the range is not inside the buffer, or ends before it starts, as for the index of a
    /// slice.
    pub fn new(buf: B, range: impl RangeBounds<usize>) -> Slice<B> {
        let len = buf.bytes().len();
        let bounds = (range.start_bound().map(|at| *at as u64), range.end_bound().map(|at| *at as u64));
        match offsets(&bounds, len as u64) {
            (Some(start), Some(end)) if start <= end && end <= len as u64 => {
                Slice { buf, range: start as usize..end as usize }
            }
            _ => panic!(
                "range {:?}..{:?} outside of a buffer of {len} bytes",
                range.start_bound(),
                range.end_bound()
            ),
        }
    }
}

impl<B> Slice<B> {
    /// Returns the buffer.
    pub fn into_inner(self) -> B {
        self.buf
    }

    /// Returns the buffer by reference.
    pub fn get_ref(&self) -> &B {
        &self.buf
    }

    /// Returns the place of the part in the buffer.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl<B: SendBuf> Deref for Slice<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf.bytes()[self.range.clone()]
    }
}

impl<B: RecvBuf> DerefMut for Slice<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buf.bytes_mut()[self.range.clone()]
    }
}

// SAFETY: a fixed part of bytes that the buffer's type keeps in place and unchanged.
unsafe impl<B: SendBuf> SendBuf for Slice<B> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: as above; the buffer owns its bytes alone.
unsafe impl<B: RecvBuf> RecvBuf for Slice<B> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl<B: fmt::Debug> fmt::Debug for Slice<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice").field("range", &self.range).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{ops::Bound, panic::catch_unwind, sync::Arc};

    use super::*;

    #[test]
    fn a_part_gives_its_buffer_back() {
        let mut part = Slice::new(vec![1, 2, 3, 4], 1..=2);
        part[0] = 9;
        assert_eq!((&part[..], part.range()), (&[9, 3][..], 1..3));
        let mut of_part = Slice::new(part, 1..);
        of_part.bytes_mut()[0] = 8;
        assert_eq!(of_part.get_ref().get_ref()[..], [1, 9, 8, 4]);
        assert_eq!(of_part.into_inner().into_inner(), [1, 9, 8, 4]);
        let shared = Arc::<[u8]>::from([1, 2, 3]);
        let parts = [Slice::new(Arc::clone(&shared), ..1), Slice::new(shared, 3..)];
        assert_eq!(parts.each_ref().map(|part| part.len()), [1, 0]);
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn a_part_outside_of_its_buffer_panics() {
        assert!(catch_unwind(|| Slice::new(vec![0; 4], ..5)).is_err());
        assert!(catch_unwind(|| Slice::new(vec![0; 4], 3..2)).is_err());
        assert!(catch_unwind(|| Slice::new(vec![0; 4], ..=usize::MAX)).is_err());
        assert!(
            catch_unwind(|| Slice::new(vec![0; 4], (Bound::Excluded(usize::MAX), Bound::Unbounded))).is_err()
        );
        assert!(Slice::new(vec![0; 4], 4..).is_empty());
    }
}
