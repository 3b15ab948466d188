//! A range of a peer's memory with its length and rights, for requests that are checked locally.
//!
//! No I/O, no locks, no clock. No arithmetic here wraps.

use std::{
    fmt,
    ops::{Bound, RangeBounds},
};

use super::{Access, RemoteAddr};

/// A range of a peer's memory: its first address, its length, and the rights that the peer gave.
///
/// A service makes one for an export with [`Peer::remote_mr`](crate::Peer::remote_mr), and hands it
/// to its client in a reply ([`to_le_bytes`](Self::to_le_bytes)). The client checks a request
/// against it before the request leaves. So a request that the host would refuse costs no round
/// trip and breaks no queue pair.
///
/// The checks prevent mistakes, and protect nothing: the host checks each request itself.
///
/// It is a plain value of 24 bytes when encoded: the address of the first byte and its key, the
/// rights, the length. Offsets and lengths are in bytes, and offsets count from the first byte of
/// this range. It stays valid until the host ends the export, or the session ends
/// ([`Session::reconnect`](crate::Session::reconnect)). A request with an invalid one fails with
/// [`WcStatus::RemAccessErr`](crate::WcStatus::RemAccessErr), and breaks a queue pair.
///
/// ```
/// use rdmabox::{MemoryServer, RemoteMrError, Session, SessionOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
/// # let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
/// let memory = MemoryServer::locate(&session)?;
/// let page = memory.slice(8192..12288)?;
/// session.write(page.for_write(0, 5)?, b"hello")?;
/// session.fetch_add(page.for_atomic(4088)?, 1)?;
/// assert!(matches!(page.for_write(4090, 8), Err(RemoteMrError::OutOfBounds { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMr {
    base: RemoteAddr,
    /// `base.addr + len` does not overflow.
    len: u64,
    /// Remote rights only.
    access: Access,
}

/// Error of a range that does not fit a [`RemoteMr`], or that the rights do not cover. No request
/// was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteMrError {
    /// The range is not inside the memory.
    #[error("range {offset}+{len} outside of remote memory of {limit} bytes")]
    OutOfBounds {
        /// First byte, relative to the memory.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Length of the memory in bytes.
        limit: u64,
    },
    /// The peer did not give this right.
    #[error("no right: the request needs {}, the remote memory allows {}", Rights(*needs), Rights(*allows))]
    NoRight {
        /// The rights that the request needs.
        needs: Access,
        /// The rights of the memory.
        allows: Access,
    },
    /// The address of the word is not a multiple of 8.
    #[error("the word at {offset} is not aligned: its address is {addr:#x}")]
    Unaligned {
        /// Offset of the word, relative to the memory.
        offset: u64,
        /// Address of the word at the peer.
        addr: u64,
    },
    /// The end of the memory is not an address.
    #[error("remote memory of {len} bytes at {addr:#x} exceeds the address space")]
    Wraps {
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The bytes encode rights that do not exist.
    #[error("unknown rights {bits:#x} of remote memory")]
    UnknownRights {
        /// The encoded rights.
        bits: u32,
    },
}

/// Shows rights as words.
struct Rights(Access);

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Access::REMOTE_READ, "read"),
            (Access::REMOTE_WRITE, "write"),
            (Access::REMOTE_ATOMIC, "atomic"),
        ];
        let mut separator = "";
        for (_, name) in names.iter().filter(|(right, _)| self.0.contains(*right)) {
            write!(f, "{separator}{name}")?;
            separator = "+";
        }
        if separator.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

impl RemoteMr {
    /// Number of bytes of the encoded form.
    pub const ENCODED_LEN: usize = 24;

    /// Makes a range of `len` bytes at `base`. Local rights of `access` have no meaning at a peer
    /// and are left out.
    ///
    /// # Errors
    /// [`RemoteMrError::Wraps`] if `base` plus `len` exceeds the largest address.
    pub fn new(base: RemoteAddr, len: u64, access: Access) -> Result<RemoteMr, RemoteMrError> {
        match base.addr.checked_add(len) {
            Some(_) => Ok(RemoteMr { base, len, access: access.intersection(Access::REMOTE_ANY) }),
            None => Err(RemoteMrError::Wraps { addr: base.addr, len }),
        }
    }

    /// Makes a range of a registered region, whose end is an address.
    pub(crate) fn of_region(base: RemoteAddr, len: u64, access: Access) -> RemoteMr {
        debug_assert!(base.addr.checked_add(len).is_some(), "a region is mapped");
        RemoteMr { base, len, access: access.intersection(Access::REMOTE_ANY) }
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> RemoteAddr {
        self.base
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the remote rights: of `REMOTE_READ`, `REMOTE_WRITE` and `REMOTE_ATOMIC`.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns a part of the range, with the same rights. Offsets are relative to this range.
    ///
    /// # Errors
    /// [`RemoteMrError::OutOfBounds`] if the part is not inside this range, or ends before it
    /// starts.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteMr, RemoteMrError> {
        let (start, end) = offsets(&range, self.len);
        let len = end.and_then(|end| end.checked_sub(start?));
        match (start, len) {
            (Some(start), Some(len)) => Ok(RemoteMr { base: self.address(start, len)?, len, ..*self }),
            // The bounds do not fit into the type, or the end comes before the start.
            _ => {
                Err(RemoteMrError::OutOfBounds { offset: start.unwrap_or(u64::MAX), len: 0, limit: self.len })
            }
        }
    }

    /// Returns the range with those of its rights that `access` has, for a client that is to have
    /// fewer.
    #[must_use]
    pub fn restrict(&self, access: Access) -> RemoteMr {
        RemoteMr { access: self.access.intersection(access), ..*self }
    }

    /// Returns the address `offset` bytes behind the first byte. The memory has a byte there; a
    /// request of more bytes may reach beyond the end.
    ///
    /// # Errors
    /// [`RemoteMrError::OutOfBounds`] if `offset` is not below [`len`](Self::len).
    pub fn at(&self, offset: u64) -> Result<RemoteAddr, RemoteMrError> {
        self.address(offset, 1)
    }

    /// Returns the address for a READ of `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`RemoteMrError::OutOfBounds`] and [`RemoteMrError::NoRight`].
    pub fn for_read(&self, offset: u64, len: usize) -> Result<RemoteAddr, RemoteMrError> {
        self.need(Access::REMOTE_READ)?;
        self.address(offset, len as u64)
    }

    /// Returns the address for a WRITE of `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`RemoteMrError::OutOfBounds`] and [`RemoteMrError::NoRight`].
    pub fn for_write(&self, offset: u64, len: usize) -> Result<RemoteAddr, RemoteMrError> {
        self.need(Access::REMOTE_WRITE)?;
        self.address(offset, len as u64)
    }

    /// Returns the address for an atomic on the 8-byte word at `offset`.
    ///
    /// # Errors
    /// [`RemoteMrError::OutOfBounds`], [`RemoteMrError::NoRight`] and
    /// [`RemoteMrError::Unaligned`].
    pub fn for_atomic(&self, offset: u64) -> Result<RemoteAddr, RemoteMrError> {
        self.word(offset, Access::REMOTE_ATOMIC)
    }

    /// Returns the address for a [load](crate::Session::load_u64) of the 8-byte word at `offset`.
    ///
    /// # Errors
    /// As for [`for_atomic`](Self::for_atomic), but with the right to read.
    pub fn for_load(&self, offset: u64) -> Result<RemoteAddr, RemoteMrError> {
        self.word(offset, Access::REMOTE_READ)
    }

    /// Encodes the range for a peer: base, rights and length, each little-endian.
    pub fn to_le_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..12].copy_from_slice(&self.base.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.access.bits().to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Decodes the bytes of [`to_le_bytes`](Self::to_le_bytes), also bytes of a peer that is not
    /// trusted. The host checks whether the memory exists.
    ///
    /// # Errors
    /// [`RemoteMrError::Wraps`] and [`RemoteMrError::UnknownRights`].
    pub fn from_le_bytes(bytes: [u8; Self::ENCODED_LEN]) -> Result<RemoteMr, RemoteMrError> {
        let (base, rest) = part(&bytes);
        let (bits, rest) = part(rest);
        let (len, _) = part(rest);
        let bits = u32::from_le_bytes(bits);
        let access = Access::from_bits(bits).filter(|access| Access::REMOTE_ANY.contains(*access));
        let access = access.ok_or(RemoteMrError::UnknownRights { bits })?;
        RemoteMr::new(RemoteAddr::from_le_bytes(base), u64::from_le_bytes(len), access)
    }

    /// Returns the address of an aligned word.
    fn word(&self, offset: u64, needs: Access) -> Result<RemoteAddr, RemoteMrError> {
        self.need(needs)?;
        let remote = self.address(offset, 8)?;
        match remote.addr.is_multiple_of(8) {
            true => Ok(remote),
            false => Err(RemoteMrError::Unaligned { offset, addr: remote.addr }),
        }
    }

    fn need(&self, needs: Access) -> Result<(), RemoteMrError> {
        match self.access.contains(needs) {
            true => Ok(()),
            false => Err(RemoteMrError::NoRight { needs, allows: self.access }),
        }
    }

    fn address(&self, offset: u64, len: u64) -> Result<RemoteAddr, RemoteMrError> {
        let outside = RemoteMrError::OutOfBounds { offset, len, limit: self.len };
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        let addr = end.and_then(|_| self.base.addr.checked_add(offset)).ok_or(outside)?;
        Ok(RemoteAddr { addr, ..self.base })
    }
}

/// Returns the first offset of a range of `len` bytes and the offset behind its last one; `None`
/// beyond the largest offset.
pub(crate) fn offsets(range: &impl RangeBounds<u64>, len: u64) -> (Option<u64>, Option<u64>) {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(len),
    };
    (start, end)
}

/// Splits the first `N` bytes off; the caller has checked the length.
fn part<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    let mut first = [0; N];
    let (head, rest) = bytes.split_at(N);
    first.copy_from_slice(head);
    (first, rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mr(addr: u64, len: u64, access: Access) -> RemoteMr {
        RemoteMr::new(RemoteAddr { addr, rkey: 7 }, len, access).expect("a range")
    }

    #[test]
    fn parts_and_addresses_stay_inside() {
        let whole = mr(0x1000, 64, Access::REMOTE_ALL);
        assert_eq!(whole.access(), Access::REMOTE_ANY);
        let part = whole.slice(16..48).expect("inside");
        assert_eq!((part.base(), part.len()), (RemoteAddr { addr: 0x1010, rkey: 7 }, 32));
        assert_eq!(part.slice(..).expect("all of it"), part);
        assert_eq!(part.slice(8..=15).expect("inside").len(), 8);
        assert!(part.slice(32..).expect("the end").is_empty());
        assert_eq!(part.at(31), Ok(RemoteAddr { addr: 0x102f, rkey: 7 }));
        assert_eq!(part.for_write(24, 8), Ok(RemoteAddr { addr: 0x1028, rkey: 7 }));
        assert_eq!(part.for_read(32, 0), Ok(RemoteAddr { addr: 0x1030, rkey: 7 }));

        let outside = |offset, len| RemoteMrError::OutOfBounds { offset, len, limit: 32 };
        assert_eq!(part.at(32), Err(outside(32, 1)));
        assert_eq!(part.slice(8..33), Err(outside(8, 25)));
        assert_eq!(part.for_read(25, 8), Err(outside(25, 8)));
        assert_eq!(part.for_write(u64::MAX, usize::MAX), Err(outside(u64::MAX, u64::MAX)));
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = part.slice(9..8);
        assert_eq!(reversed, Err(outside(9, 0)));
        assert_eq!(part.slice(..=u64::MAX), Err(outside(0, 0)));
        assert_eq!(part.slice((Bound::Excluded(u64::MAX), Bound::Unbounded)), Err(outside(u64::MAX, 0)));
    }

    #[test]
    fn rights_and_alignment_are_checked() {
        let memory = mr(0x1004, 64, Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        let missing = |allows| RemoteMrError::NoRight { needs: Access::REMOTE_WRITE, allows };
        assert_eq!(memory.for_write(0, 1), Err(missing(memory.access())));
        assert_eq!(memory.for_atomic(4), Ok(RemoteAddr { addr: 0x1008, rkey: 7 }));
        assert_eq!(memory.for_atomic(8), Err(RemoteMrError::Unaligned { offset: 8, addr: 0x100c }));
        let reads = memory.restrict(Access::REMOTE_READ | Access::REMOTE_WRITE);
        assert_eq!(reads.access(), Access::REMOTE_READ);
        assert!(reads.for_atomic(4).is_err() && reads.for_read(0, 64).is_ok());
        assert!(reads.for_load(4).is_ok() && reads.for_load(5).is_err() && reads.for_load(60).is_err());
        assert_eq!(
            missing(memory.access()).to_string(),
            "no right: the request needs write, the remote memory allows read+atomic"
        );
        assert!(missing(Access::empty()).to_string().ends_with("allows nothing"));
    }

    #[test]
    fn bytes_of_a_peer_are_checked() {
        let memory = mr(0x0102_0304_0506_0708, 0x1112, Access::REMOTE_ANY);
        let bytes = memory.to_le_bytes();
        assert_eq!(bytes[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[8..], [7, 0, 0, 0, 14, 0, 0, 0, 0x12, 0x11, 0, 0, 0, 0, 0, 0]);
        assert_eq!(RemoteMr::from_le_bytes(bytes), Ok(memory));
        for bits in [1_u8, 16, 255] {
            let mut bytes = bytes;
            bytes[12] = bits;
            assert_eq!(
                RemoteMr::from_le_bytes(bytes),
                Err(RemoteMrError::UnknownRights { bits: bits.into() })
            );
        }
        let mut bytes = bytes;
        bytes[16..].fill(255);
        let wraps = RemoteMrError::Wraps { addr: 0x0102_0304_0506_0708, len: u64::MAX };
        assert_eq!(RemoteMr::from_le_bytes(bytes), Err(wraps));
        let last = RemoteAddr { addr: u64::MAX, rkey: 1 };
        assert!(RemoteMr::new(last, 0, Access::empty()).is_ok());
        assert!(RemoteMr::new(last, 1, Access::empty()).is_err());
    }

    proptest! {
        /// For all numbers a result lies inside, and an error is right.
        #[test]
        fn no_arithmetic_wraps(addr: u64, len: u64, start: u64, end: u64, offset: u64, count: usize) {
            let base = RemoteAddr { addr, rkey: 1 };
            let Ok(memory) = RemoteMr::new(base, len, Access::REMOTE_ANY) else {
                prop_assert!(u128::from(addr) + u128::from(len) > u128::from(u64::MAX));
                return Ok(());
            };
            match memory.slice(start..end) {
                Ok(part) => {
                    prop_assert!(start <= end && end <= len);
                    prop_assert_eq!((part.base().addr, part.len()), (addr + start, end - start));
                }
                Err(_) => prop_assert!(start > end || end > len),
            }
            let fits = u128::from(offset) + count as u128 <= u128::from(len);
            prop_assert_eq!(memory.for_read(offset, count).is_ok(), fits);
            prop_assert_eq!(memory.at(offset).is_ok(), offset < len);
        }
    }
}
