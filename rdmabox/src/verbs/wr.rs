//! Work requests, which a caller posts to a queue pair.

use bitflags::bitflags;

use super::AtomicOp;

/// A scatter/gather element: a range of local registered memory.
// Exhaustive: it has the parts of `struct ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address of the first byte, inside the region that `lkey` names.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// An address in a peer's memory.
// Exhaustive: the specification has these two parts, and the encoding has them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// Virtual address in the peer's address space.
    pub addr: u64,
    /// Remote key of the region.
    pub rkey: u32,
}

impl RemoteAddr {
    /// Returns the address `offset` bytes further on, wrapping. The responder checks the range of a
    /// request.
    #[must_use]
    pub fn at(self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), ..self }
    }

    /// Encodes the address for a peer: little-endian, `addr` first.
    pub fn to_le_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..].copy_from_slice(&self.rkey.to_le_bytes());
        bytes
    }

    /// Decodes the bytes of [`to_le_bytes`](Self::to_le_bytes). Any bytes decode; the host checks
    /// whether the address is valid.
    pub fn from_le_bytes(bytes: [u8; 12]) -> RemoteAddr {
        let [a, b, c, d, e, f, g, h, rkey @ ..] = bytes;
        RemoteAddr { addr: u64::from_le_bytes([a, b, c, d, e, f, g, h]), rkey: u32::from_le_bytes(rkey) }
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// Delivers the gathered bytes into the peer's next posted receive, with `imm` if given.
    Send {
        /// Immediate data for the receiver's completion.
        imm: Option<u32>,
    },
    /// Writes the gathered bytes to `remote`. With `imm`, also consumes and completes one posted
    /// receive of the peer.
    Write {
        /// Destination of the bytes.
        remote: RemoteAddr,
        /// Immediate data for the receiver's completion.
        imm: Option<u32>,
    },
    /// Reads the sum of the element lengths from `remote` and scatters it to the elements.
    Read {
        /// Source of the bytes.
        remote: RemoteAddr,
    },
    /// Compares and swaps the 8 aligned bytes at `remote`. The old value is stored in the single
    /// 8-byte element.
    CompareSwap {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Expected value.
        compare: u64,
        /// Value stored if the expected value was found.
        swap: u64,
    },
    /// Adds to the 8 aligned bytes at `remote`. The old value is stored in the single 8-byte
    /// element.
    FetchAdd {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Addend; the sum wraps.
        add: u64,
    },
    /// Applies `op` to the 8 aligned bytes at `remote`. The old value is stored in the single
    /// 8-byte element. A device without the operation refuses the post.
    FetchOp {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Operation and operand.
        op: AtomicOp,
    },
}

impl SendOp {
    /// Returns true for a request that changes a word and returns its old value.
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::FetchOp { .. })
    }
}

bitflags! {
    /// Flags of a send work request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// Requests a completion on success. Errors always cause a completion.
        const SIGNALED = 1;
        /// Starts the request only after every earlier READ and atomic of this queue pair has
        /// completed.
        const FENCE = 4;
    }
}

/// A send work request. The post borrows the scatter/gather list only until it returns.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SendWr<'a> {
    /// Value that the completion returns.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Local memory: source of SEND and WRITE, destination of READ and atomics.
    pub sges: &'a [Sge],
    /// Inline payload for SEND and WRITE, at most `max_inline_data` bytes; `sges` is then empty.
    /// The post copies the bytes: the buffer needs no registration and may be reused after the
    /// return.
    pub inline: Option<&'a [u8]>,
    /// Signaling and fence.
    pub flags: SendFlags,
}

impl<'a> SendWr<'a> {
    /// Returns a signaled work request without inline payload.
    pub const fn new(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
        SendWr { wr_id, op, sges, inline: None, flags: SendFlags::SIGNALED }
    }

    /// Sets [`inline`](Self::inline) and clears `sges`.
    #[must_use]
    pub const fn with_inline(self, bytes: &'a [u8]) -> SendWr<'a> {
        SendWr { inline: Some(bytes), sges: &[], ..self }
    }

    /// Sets [`flags`](Self::flags).
    #[must_use]
    pub const fn with_flags(self, flags: SendFlags) -> SendWr<'a> {
        SendWr { flags, ..self }
    }

    /// Returns the payload length in bytes.
    pub fn byte_len(&self) -> u64 {
        match self.inline {
            Some(bytes) => bytes.len() as u64,
            None => self.sges.iter().map(|s| u64::from(s.length)).sum(),
        }
    }
}

/// A one-sided request on the caller's own memory, for
/// [`execute_now`](super::QueuePair::execute_now). The memory needs no registration, because the
/// caller's processor copies.
#[derive(Debug)]
#[non_exhaustive]
pub enum DirectOp<'a> {
    /// Writes `data` to `remote`.
    Write {
        /// Destination of the bytes.
        remote: RemoteAddr,
        /// Payload.
        data: &'a [u8],
    },
    /// Reads the bytes at `remote`.
    Read {
        /// Source of the bytes.
        remote: RemoteAddr,
        /// Destination of the bytes.
        out: &'a mut [u8],
    },
    /// Compares and swaps the 8 aligned bytes at `remote`.
    CompareSwap {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Expected value.
        compare: u64,
        /// Value stored if the expected value was found.
        swap: u64,
        /// Destination of the old value; unchanged if the request fails.
        old: &'a mut u64,
    },
    /// Adds to the 8 aligned bytes at `remote`.
    FetchAdd {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Addend; the sum wraps.
        add: u64,
        /// Destination of the old value; unchanged if the request fails.
        old: &'a mut u64,
    },
    /// Applies `op` to the 8 aligned bytes at `remote`.
    FetchOp {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Operation and operand.
        op: AtomicOp,
        /// Destination of the old value; unchanged if the request fails.
        old: &'a mut u64,
    },
}

impl DirectOp<'_> {
    /// Returns the payload length in bytes.
    pub fn byte_len(&self) -> u64 {
        match self {
            DirectOp::Write { data, .. } => data.len() as u64,
            DirectOp::Read { out, .. } => out.len() as u64,
            DirectOp::CompareSwap { .. } | DirectOp::FetchAdd { .. } | DirectOp::FetchOp { .. } => 8,
        }
    }
}

/// A receive work request: the destination of the next incoming message.
// Exhaustive: it has the parts of `struct ibv_recv_wr`.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Value that the completion returns.
    pub wr_id: u64,
    /// Local memory, registered with [`Access::LOCAL_WRITE`](super::Access::LOCAL_WRITE).
    pub sges: &'a [Sge],
}

#[cfg(test)]
mod tests {
    use super::{DirectOp, RemoteAddr, SendOp};

    /// Each request is moved several times.
    #[test]
    fn requests_are_small() {
        assert_eq!((size_of::<SendOp>(), size_of::<DirectOp<'_>>()), (40, 48));
    }

    #[test]
    fn remote_addresses_survive_encoding_and_decoding() {
        let place = RemoteAddr { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c };
        let bytes = [8, 7, 6, 5, 4, 3, 2, 1, 0xc, 0xb, 0xa, 9];
        assert_eq!((place.to_le_bytes(), RemoteAddr::from_le_bytes(bytes)), (bytes, place));
        assert_eq!(place.at(8), RemoteAddr { addr: 0x0102_0304_0506_0710, ..place });
        assert_eq!(place.at(u64::MAX).at(1), place);
    }
}
