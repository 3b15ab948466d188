//! The properties of a work request that cost time.

use super::host::PAGE;

/// Where the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the peer: WRITE and SEND.
    Out,
    /// From the peer: READ and atomics.
    In,
}

/// A work request, as the card sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CardRequest {
    pub(crate) direction: Direction,
    /// Bytes of the payload.
    pub(crate) bytes: u64,
    /// True if the payload is part of the work request.
    pub(crate) inline: bool,
    /// Address of the peer's memory, if it names some.
    pub(crate) remote: Option<u64>,
}

impl CardRequest {
    /// Returns the numbers of the peer's pages that the request touches.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, last) = match self.remote {
            Some(addr) => (addr / PAGE, addr.saturating_add(self.bytes.max(1) - 1) / PAGE),
            None => (1, 0),
        };
        first..=last
    }
}
