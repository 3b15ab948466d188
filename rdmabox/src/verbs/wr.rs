//! Work requests: what a caller posts to a queue pair.

use bitflags::bitflags;

/// A scatter/gather element: a piece of local registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address of the first byte, inside the region that `lkey` names.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// Virtual address in the peer's address space.
    pub addr: u64,
    /// Remote key of the region there.
    pub rkey: u32,
}

impl RemoteAddr {
    /// The place `offset` bytes further on, wrapping: the range of a request is checked where it is made.
    #[must_use]
    pub fn at(self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), ..self }
    }

    /// As bytes, little-endian, address first, for telling a peer.
    pub fn to_le_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..].copy_from_slice(&self.rkey.to_le_bytes());
        bytes
    }

    /// From the bytes of [`to_le_bytes`](Self::to_le_bytes). Any bytes make a place; the host finds out whether it is
    /// one of its own.
    pub fn from_le_bytes(bytes: [u8; 12]) -> RemoteAddr {
        let [a, b, c, d, e, f, g, h, rkey @ ..] = bytes;
        RemoteAddr { addr: u64::from_le_bytes([a, b, c, d, e, f, g, h]), rkey: u32::from_le_bytes(rkey) }
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Deliver the gathered bytes into the peer's next posted receive; `imm` travels along if given.
    Send {
        /// Immediate data for the receiver's completion.
        imm: Option<u32>,
    },
    /// Place the gathered bytes at `remote`. With `imm`, also consume one posted receive there and complete it.
    Write {
        /// Where the bytes go.
        remote: RemoteAddr,
        /// Immediate data for the receiver's completion.
        imm: Option<u32>,
    },
    /// Fetch the sum of the element lengths from `remote` and scatter it.
    Read {
        /// Where the bytes come from.
        remote: RemoteAddr,
    },
    /// Atomic compare-and-swap of the 8 aligned bytes at `remote`; the old value lands in the one 8-byte element.
    CompareSwap {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Value expected there.
        compare: u64,
        /// Value stored if it was.
        swap: u64,
    },
    /// Atomic fetch-and-add on the 8 aligned bytes at `remote`; the old value lands in the one 8-byte element.
    FetchAdd {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Added, wrapping.
        add: u64,
    },
}

bitflags! {
    /// Flags of a send work request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// Report success with a completion. Errors are always reported.
        const SIGNALED = 1;
        /// Start only after every earlier READ and atomic on this queue pair is complete.
        const FENCE = 4;
    }
}

/// A send work request. The scatter/gather list is borrowed for the post only.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local memory: gathered from for SEND and WRITE, scattered to for READ and atomics.
    pub sges: &'a [Sge],
    /// Inline data: these bytes are the payload, instead of `sges`, which is then empty. They are taken at once:
    /// the buffer need not be registered and may be reused when the post returns. At most `max_inline_data`
    /// bytes; SEND and WRITE only.
    pub inline: Option<&'a [u8]>,
    /// Signaling and fence.
    pub flags: SendFlags,
}

impl SendWr<'_> {
    /// Length of the payload in bytes.
    pub fn byte_len(&self) -> u64 {
        match self.inline {
            Some(bytes) => bytes.len() as u64,
            None => self.sges.iter().map(|s| u64::from(s.length)).sum(),
        }
    }
}

/// A one-sided request on memory of the caller's own, for [`execute_now`](super::QueuePair::execute_now). The memory need
/// not be registered: the caller's processor copies.
#[derive(Debug)]
pub enum DirectOp<'a> {
    /// Place `data` at `remote`.
    Write {
        /// Where the bytes go.
        remote: RemoteAddr,
        /// The bytes.
        data: &'a [u8],
    },
    /// Fetch the bytes at `remote`.
    Read {
        /// Where the bytes come from.
        remote: RemoteAddr,
        /// Where they land.
        out: &'a mut [u8],
    },
    /// Atomic compare-and-swap of the 8 aligned bytes at `remote`.
    CompareSwap {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Value expected there.
        compare: u64,
        /// Value stored if it was.
        swap: u64,
        /// Gets the old value; left alone by a request that fails.
        old: &'a mut u64,
    },
    /// Atomic fetch-and-add on the 8 aligned bytes at `remote`.
    FetchAdd {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// Added, wrapping.
        add: u64,
        /// Gets the old value; left alone by a request that fails.
        old: &'a mut u64,
    },
}

impl DirectOp<'_> {
    /// Length of the payload in bytes.
    pub fn byte_len(&self) -> u64 {
        match self {
            DirectOp::Write { data, .. } => data.len() as u64,
            DirectOp::Read { out, .. } => out.len() as u64,
            DirectOp::CompareSwap { .. } | DirectOp::FetchAdd { .. } => 8,
        }
    }
}

/// A receive work request: where the next incoming message lands.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Local memory, registered with [`Access::LOCAL_WRITE`](super::Access::LOCAL_WRITE).
    pub sges: &'a [Sge],
}

#[cfg(test)]
mod tests {
    use super::RemoteAddr;

    #[test]
    fn places_are_told_and_understood() {
        let place = RemoteAddr { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c };
        let bytes = [8, 7, 6, 5, 4, 3, 2, 1, 0xc, 0xb, 0xa, 9];
        assert_eq!((place.to_le_bytes(), RemoteAddr::from_le_bytes(bytes)), (bytes, place));
        assert_eq!(place.at(8), RemoteAddr { addr: 0x0102_0304_0506_0710, ..place });
        assert_eq!(place.at(u64::MAX).at(1), place);
    }
}
