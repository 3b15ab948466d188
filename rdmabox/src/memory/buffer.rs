//! Buffers in registered memory, for requests that neither copy nor register.
//!
//! # Concurrency
//! Plain values.

use std::ops::{Deref, DerefMut, RangeBounds};

use super::{PreMrBuf, RecvBuf, SendBuf, Slice, own_buf::OwnBuf};

/// A buffer in registered memory, from [`Session::allocate`](crate::Session::allocate) or
/// [`Session::buffer`](crate::Session::buffer). Requests of its session neither copy nor register
/// it. It dereferences to its bytes.
///
/// | | [`allocate`](crate::Session::allocate) | [`buffer`](crate::Session::buffer) |
/// |-|-|-|
/// | length | any | up to 1 MiB |
/// | memory | pages of its own, registered when allocated | a block of the session's pool of 8 MiB |
/// | content at first | zeros | the bytes of the block's last user |
/// | a request with it counts | `cache_hits`, `registered_bytes` | `registered_bytes` |
/// | drop | ends the registration, returns the pages to the system | returns the block to the pool |
///
/// The buffer may outlive its session. Another session may use it, too. For that session the bytes
/// are ordinary memory. It copies them (`pre_mr_bytes`, up to its threshold) or registers them for
/// each request (`registrations`).
///
/// ```
/// use rdmabox::{MemoryServer, Session};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
/// # let address = &host.addresses()[0];
/// // `direct(false)`: also over shared memory a request is posted, and counted.
/// let session = Session::builder().direct(false).connect(address)?;
/// let base = MemoryServer::locate(&session)?.base();
/// let mut buffer = session.allocate(1 << 20)?;
/// buffer[..5].copy_from_slice(b"hello");
/// // The first half is sent. The buffer comes back for the next request.
/// let buffer = session.start_write(base, buffer.slice(..1 << 19)).wait()?.into_inner();
/// let buffer = session.start_read(base, buffer).wait()?;
/// assert_eq!(&buffer[..5], b"hello");
/// let stats = session.stats();
/// // The one registration is that of the buffer.
/// assert_eq!((stats.registrations, stats.pre_mr_bytes), (1, 0));
/// assert_eq!(stats.registered_bytes, (1 << 19) + (1 << 20));
/// # Ok(())
/// # }
/// ```
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
    /// buffer back. Requests of the part neither copy nor register it either. Blocking requests
    /// need no slice: `session.write(remote, &buffer[..len])` does not copy either.
    ///
    /// # Panics
    /// If the range is not inside the buffer, or ends before it starts.
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
